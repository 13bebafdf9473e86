#!/usr/bin/env bash
# ./dev docs
command_name=docs
source scripts/common.sh
source scripts/setup.sh

show_help() {
  cat <<'TEXT'
usage: ./dev docs [--serve] [--port N]

Makes a site of README.md, the pages of docs/, and the reference of the C, C++ and Python interfaces. It needs no build.
Fails and names them if links or anchors are broken. The last line says where the site is.

  --serve    serve the site on this machine, and make it again when a page changes
  --port N   the port for --serve (default 8000)
TEXT
}

serve=
port=8000
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --serve) serve=yes; shift ;;
    --port) port=$(option_value "$@"); shift 2 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done

# An environment of its own, because the tests do not need it.
venv=build/docs-venv
venv_python=$venv/bin/python
config=scripts/docs_site/mkdocs.yml
log=build/docs.log
site=$PWD/build/docs-site

# mkdocs CONFIG_ARGUMENTS: the theme's advertisement for other tools is left out.
mkdocs() { NO_MKDOCS_2_WARNING=1 "$venv_python" -m mkdocs "$@"; }

ensure_packages docs
ensure_environment requirements_docs "PyPI; half a minute, and 0.2 GB of disk"
if [[ -n $serve ]]; then
  say "serving http://127.0.0.1:$port/ until Ctrl-C"
  mkdocs serve --quiet --no-strict --config-file $config --dev-addr "127.0.0.1:$port"
  exit
fi
python3 scripts/check_links.py >build/links.log || die "links are broken: see above"
say "making the site"
mkdocs build --clean --config-file $config >$log 2>&1 || {
  grep -E '^(WARNING|ERROR|Aborted|[A-Za-z.]*Error)' $log >&2 || tail -n 40 $log >&2
  die "the site has errors: see above, or $log"
}
echo "docs: $site/index.html"
