#!/usr/bin/env bash
# Real etcd servers for tests, chaos and the demo: at one address, loopback's unless told otherwise, at ports of their own,
# with their data in the folder given, as many clusters at a time as there are folders.
command_name=etcd_server
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source scripts/common.sh

show_help() {
  cat <<'TEXT'
usage: scripts/etcd_server.sh start FOLDER [--members N] [--address A] [--quota BYTES] [--tls] [--user NAME]
       scripts/etcd_server.sh stop FOLDER
       scripts/etcd_server.sh fill FOLDER
       scripts/etcd_server.sh free FOLDER
       scripts/etcd_server.sh control FOLDER WORDS...

start makes a cluster of N members (1) in FOLDER and prints its location for the option `coordination`. Where there is
one already it starts the members that do not run, as they were. The process id of member i is in FOLDER/i/pid.

  --address A    where they listen (127.0.0.1)
  --quota BYTES  how much each may hold before it is full
  --tls          TLS both ways; FOLDER/tls has ca.pem, client.pem and client-key.pem, and other.pem, another CA
  --user NAME    users: NAME may use keys below /ckptengine/, with the password in FOLDER/password

fill puts garbage into a server that has a quota until there is no room for more.
free makes room in a server that is full: it forgets old revisions, defragments, and disarms the alarm.
control runs etcdctl with these words, as its administrator.
TEXT
}

is_gone() { ! grep -qsv '^State:[[:space:]]*Z' <(grep -s '^State:' "/proc/$1/status"); }
pid_of() { cat "$folder/$1/pid" 2>/dev/null || true; }
# Numbers of processes come again, and the file may be old.
is_ours() { tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -qxF "$folder/$2/data"; }
runs() {
  local pid
  pid=$(pid_of "$1")
  [[ -n $pid ]] && ! is_gone "$pid" && is_ours "$pid" "$1"
}

client_url() { echo "$scheme://$address:${ports[$1]}"; }
peer_url() { echo "http://$address:${ports[$((members + $1))]}"; }

# The URLs of all members, with commas between.
all_clients() {
  local urls=() i
  for ((i = 0; i < members; ++i)); do urls+=("$(client_url "$i")"); done
  (IFS=, && echo "${urls[*]}")
}

etcdctl_as() {
  local user=$1 tls=()
  shift
  [[ $scheme == http ]] ||
    tls=(--cacert "$folder/tls/ca.pem" --cert "$folder/tls/client.pem" --key "$folder/tls/client-key.pem")
  [[ -z $user ]] || tls+=(--user "$user:$(cat "$folder/password")")
  env -i PATH="$PATH" ETCDCTL_API=3 etcdctl --command-timeout 30s --endpoints "$(all_clients)" "${tls[@]}" "$@" \
    >>"$folder/etcdctl.log" 2>&1
}

# As its administrator, where it has users.
administer() {
  local user=''
  [[ ! -f $folder/has-users ]] || user=root
  etcdctl_as "$user" "$@"
}

serves() { administer --command-timeout 5s get x; }

# What a start without a cluster decides, for all starts after it.
decide() {
  mkdir -p "$folder"
  # Below the range from which the kernel takes ports for others, who would have them while a member is stopped.
  python3 -c '
import random, socket, sys
count, address, sockets = 2 * int(sys.argv[1]), sys.argv[2], []
for port in random.sample(range(20000, 32000), 1000):
    try:
        sockets.append(socket.create_server((address, port)))
    except OSError:
        continue
    if len(sockets) == count:
        break
print(*(at.getsockname()[1] for at in sockets))' "$members" "$address" >"$folder/ports"
  printf '%s\n' "members=$members" "address=$address" "quota=$quota" "scheme=$scheme" "user=$user" >"$folder/settings"
  [[ $scheme == http ]] || make_certificates
  [[ -z $user ]] || (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(16))' >"$folder/password")
}

# sign NAME USAGE: a key and a certificate of the folder's CA. The server's has no common name: etcd's gateway would take
# it for a user's.
sign() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1-key.pem" -out "$1.csr" \
    -subj "/O=ckptengine tests"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -out "$1.pem" \
    -extfile <(printf 'subjectAltName=IP:%s\nextendedKeyUsage=%s\n' "$address" "$2")
}

make_certificates() (
  mkdir -p "$folder/tls"
  cd "$folder/tls"
  umask 077
  {
    for name in ca other; do
      openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=$name" \
        -keyout "$name-key.pem" -out "$name.pem"
    done
    sign server serverAuth,clientAuth # its gateway is a client of itself
    sign client clientAuth
  } >openssl.log 2>&1 || die "openssl could not make certificates (log: $folder/tls/openssl.log)"
)

start_member() {
  local i=$1 cluster=() j tls=()
  for ((j = 0; j < members; ++j)); do cluster+=("m$j=$(peer_url "$j")"); done
  [[ $scheme == http ]] ||
    tls=(--cert-file "$folder/tls/server.pem" --key-file "$folder/tls/server-key.pem" --client-cert-auth
      --trusted-ca-file "$folder/tls/ca.pem")
  mkdir -p "$folder/$i/data"
  chmod 700 "$folder/$i/data"
  # Nothing of what the environment says of another etcd.
  setsid env -i PATH="$PATH" ETCD_UNSUPPORTED_ARCH="$(dpkg --print-architecture)" etcd --name "m$i" \
    --data-dir "$folder/$i/data" --listen-client-urls "$(client_url "$i")" --advertise-client-urls "$(client_url "$i")" \
    --listen-peer-urls "$(peer_url "$i")" --initial-advertise-peer-urls "$(peer_url "$i")" \
    --initial-cluster "$(IFS=, && echo "${cluster[*]}")" --heartbeat-interval 50 --election-timeout 500 \
    --auto-compaction-mode revision --auto-compaction-retention 1000 --snapshot-count 1000 --max-wals 2 \
    --quota-backend-bytes "$quota" --logger zap --log-outputs "$folder/$i/log" "${tls[@]}" \
    </dev/null >>"$folder/$i/output" 2>&1 &
  echo $! >"$folder/$i/pid"
}

add_users() {
  # A password on the command line would show in the list of processes; these are of a test's own.
  {
    etcdctl_as "" user add "root:$(cat "$folder/password")"
    etcdctl_as "" role add ckptengine
    etcdctl_as "" role grant-permission ckptengine --prefix=true readwrite /ckptengine/
    etcdctl_as "" user add "$user:$(cat "$folder/password")"
    etcdctl_as "" user grant-role "$user" ckptengine
    etcdctl_as "" user grant-role root root
    etcdctl_as "" auth enable
  } || die "etcd's users could not be made (log: $folder/etcdctl.log)"
  : >"$folder/has-users"
}

# They are run: whoever could write them would run what they like.
read_settings() {
  [[ -O $folder && -O $folder/settings ]] || die "$folder belongs to another user, so it is not used"
  # shellcheck source=/dev/null
  source "$folder/settings"
}

# Of the members that start() has started.
serves_or_ended() {
  local i
  serves && return
  for i in "${started[@]}"; do runs "$i" || return 0; done
  return 1
}

start() {
  local i started=()
  if [[ -f $folder/settings ]]; then
    read_settings
  else
    decide
  fi
  read -ra ports <"$folder/ports"
  for ((i = 0; i < members; ++i)); do
    runs "$i" && continue
    start_member "$i"
    started+=("$i")
  done
  wait_until 50 serves_or_ended || die "etcd did not start within 50 s (logs: $folder/*/log)"
  for i in "${started[@]}"; do runs "$i" || die "member $i of etcd has ended (log: $folder/$i/output)"; done
  [[ -z $user || -f $folder/has-users ]] || add_users
  echo "${scheme/http/etcd}://$(all_clients | sed "s#$scheme://##g")"
}

# The folder's servers, as they were decided; nothing where there are none.
look() {
  [[ -f $folder/settings ]] || exit 0
  read_settings
  read -ra ports <"$folder/ports"
}

stop() {
  local i pid
  look
  for ((i = 0; i < members; ++i)); do
    pid=$(pid_of "$i")
    if runs "$i"; then
      kill -KILL "$pid" # what it has acknowledged is on disk
      wait_until 5 is_gone "$pid" || die "member $i of the etcd in $folder did not end within 5 s"
    fi
    rm -f "$folder/$i/pid"
  done
}

fill() {
  local bytes
  look
  : >"$folder/etcdctl.log"
  for bytes in 1000000 1000; do
    while head -c "$bytes" /dev/zero | tr '\0' x | administer put hog; do :; done
  done
  grep -q 'database space exceeded' "$folder/etcdctl.log" || die "etcd took all data and did not become full (log: $folder/etcdctl.log)"
}

free() {
  local revision
  look
  : >"$folder/etcdctl.log"
  administer get x -w json || true
  revision=$(sed -n 's/.*"revision":\([0-9]*\).*/\1/p' "$folder/etcdctl.log" | tail -n 1)
  administer compact --physical "$revision" || true # a second time at the same revision
  { administer defrag && administer alarm disarm; } ||
    die "etcd could not be emptied (log: $folder/etcdctl.log)"
}

[[ $# -ge 1 ]] || usage_error "give a command: start, stop, fill, free or control"
case "$1" in
  --help | -h) show_help; exit ;;
esac
[[ $# -ge 2 ]] || usage_error "give a folder"
command=$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
if [[ $command == control ]]; then
  look
  administer "$@" || die "etcdctl failed (log: $folder/etcdctl.log)"
  exit
fi
members=1
address=127.0.0.1
quota=0
scheme=http
user=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --members) members=$(option_value "$@"); shift 2 ;;
    --address) address=$(option_value "$@"); shift 2 ;;
    --quota) quota=$(option_value "$@"); shift 2 ;;
    --tls) scheme=https; shift ;;
    --user) user=$(option_value "$@"); shift 2 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
case "$command" in
  start) start ;;
  stop) stop ;;
  fill) fill ;;
  free) free ;;
  *) usage_error "unknown command '$command'" ;;
esac
