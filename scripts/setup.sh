# Sourced: installs what is missing, and says nothing when nothing is.
# shellcheck shell=bash
venv=.venv
venv_python=$venv/bin/python

# The names in scripts/packages/GROUP.txt that dpkg does not know as installed.
missing_packages() {
  local wanted name
  wanted=$(cd scripts/packages && cat "${@/%/.txt}" | sed -e 's/#.*//' -e '/^[[:space:]]*$/d')
  for name in $wanted; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" == installed ]] || echo "$name"
  done
}

# ensure_packages GROUP...: the Debian packages of scripts/packages/GROUP.txt.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this machine has no apt-get: install the packages that scripts/packages/ lists yourself"
    return
  fi
  local missing as_root=()
  missing=$(missing_packages "$@" | xargs)
  [[ -n "$missing" ]] || return 0
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null ||
      die "Debian packages are missing, and only root can install them; as root, run: apt-get install $missing"
    as_root=(sudo)
  fi
  say "installing Debian packages: $missing"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  quietly build/setup-update.log "${apt[@]}" update ||
    say "apt-get update failed (log: build/setup-update.log); trying with the older package lists"
  # shellcheck disable=SC2086
  patiently build/setup-install.log "installing Debian packages" "${apt[@]}" install -y --no-install-recommends $missing ||
    die "apt-get could not install: $missing (log: build/setup-install.log); install these packages, then run this again"
}

# ensure_venv: the virtual environment, as scripts/requirements.txt wants it.
ensure_venv() { ensure_environment requirements "PyPI; some minutes, and 1.2 GB of disk"; }

# ensure_environment FILE COST: the virtual environment $venv, as scripts/FILE.txt wants it.
ensure_environment() {
  local python
  python=$(command -v python3) || die "there is no python3 on the PATH; install Python 3.10 or newer"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$python is $("$python" --version), and ckptengine needs Python 3.10 or newer; put one first on the PATH"
  ! is_installed "$1" || return 0
  # --clear would empty what the link points to.
  [[ ! -L $venv ]] || die "$venv links to an environment that lacks something or was made for another folder; remove the link"
  quietly build/setup-venv.log "$python" -m venv --clear "$venv" ||
    die "'$python -m venv' failed (log: build/setup-venv.log); on Debian its package is python3-venv"
  install_python "$1" "$2"
}

# ensure_integrations: the frameworks that adapters are tested with, besides.
ensure_integrations() {
  is_installed requirements_integrations || install_python requirements_integrations "PyPI; half a minute, and 0.3 GB of disk"
}

# ensure_training_systems: what the adapters of training systems are tested with, in the nightly run.
ensure_training_systems() {
  is_installed requirements_training_systems ||
    install_python requirements_training_systems "PyPI; half a minute, and 0.8 GB of disk"
}

# ensure_cuda_tools: the disassembler of GPU kernels, where these are compiled. Not all toolkits have one.
ensure_cuda_tools() {
  local nvcc
  nvcc=$(compgen -G '/usr/local/cuda*/bin/nvcc' | head -n 1) || nvcc=$(command -v nvcc) || return 0
  [[ -x "$(dirname "$nvcc")/nvdisasm" ]] || command -v nvdisasm >/dev/null || is_installed requirements_cuda ||
    install_python requirements_cuda "PyPI; 6 MB of disk"
}

wanted_of() { (cat "scripts/$1.txt" && pwd) | sha256sum | cut -d ' ' -f 1; }

# is_installed FILE: whether the virtual environment has what scripts/FILE.txt asks for.
is_installed() {
  [[ -x $venv_python && "$(cat "$venv/.$1" 2>/dev/null)" == "$(wanted_of "$1")" ]]
}

# install_python FILE COST
install_python() {
  say "installing into $venv ($2): $(sed -e 's/#.*//' "scripts/$1.txt" | xargs)"
  patiently "build/setup-$1.log" "installing into $venv" "$venv_python" -m pip install --progress-bar off -r "scripts/$1.txt" ||
    die "pip could not install scripts/$1.txt (log: build/setup-$1.log); check the network and run this again"
  wanted_of "$1" >"$venv/.$1"
}
