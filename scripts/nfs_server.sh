#!/usr/bin/env bash
# A real NFS server in user space (nfs-ganesha, NFS version 3), for tests: on the loopback interface alone, as many at a
# time as there are folders. It needs root.
command_name=nfs_server
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source scripts/common.sh

show_help() {
  cat <<'TEXT'
usage: scripts/nfs_server.sh start FOLDER [SIZE]
       scripts/nfs_server.sh stop FOLDER

start serves FOLDER/export, a file system of its own of SIZE (as of mount -o size, e.g. 16m) where SIZE is given, and
prints the server's location for the option `storage`. A server that ended, or was killed, is started again with the
same location. Its process id is in FOLDER/pid. stop ends it and releases FOLDER/export.
TEXT
}

# Ganesha wants to tell a portmapper where it listens, and does not start without one; our clients never ask. Where none
# runs, one is started for that moment, in a network of its own, so that it is reachable by its unix socket alone.
portmapper_answers() {
  python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("/run/rpcbind.sock")' 2>/dev/null
}

start_portmapper() {
  portmapper_answers && return
  unshare --net rpcbind -f -w >"$folder/rpcbind.log" 2>&1 9>&- &
  portmapper=$!
  wait_until 10 portmapper_answers || die "no portmapper could be started (log: $folder/rpcbind.log)"
}

end_portmapper() { [[ -z $portmapper ]] || kill "$portmapper" 2>/dev/null || true; }

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# It listens before it serves, and drops who comes in between.
server_serves() {
  grep -qs 'NFS SERVER INITIALIZED' "$folder/ganesha.log" && listens "$nfs_port" && listens "$mount_port"
}

# The server's process, unless it is one that ended and that nobody asked after.
server_pid() { cat "$folder/pid" 2>/dev/null || true; }
is_gone() { ! grep -qsv '^State:[[:space:]]*Z' <(grep -s '^State:' "/proc/$1/status"); }

free_ports() {
  python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(at.getsockname()[1] for at in sockets))'
}

write_config() {
  cat >"$folder/ganesha.conf" <<TEXT
NFS_CORE_PARAM {
  Protocols = 3;
  NFS_Port = $nfs_port;
  MNT_Port = $mount_port;
  Bind_addr = 127.0.0.1;
  Enable_UDP = false;
  Enable_NLM = false;
  Enable_RQUOTA = false;
  mount_path_pseudo = true;
}
NFSV4 { RecoveryRoot = $folder; Graceless = true; }
EXPORT {
  Export_Id = 1;
  Path = $folder/export;
  Pseudo = /ckpt;
  Protocols = 3;
  Transports = TCP;
  Access_Type = RW;
  Squash = None;
  SecType = sys;
  FSAL { Name = VFS; }
}
LOG { Default_Log_Level = EVENT; }
TEXT
}

start() {
  mkdir -p "$folder/export"
  [[ -z $size ]] || mountpoint -q "$folder/export" || mount -t tmpfs -o "size=$size" tmpfs "$folder/export"
  [[ -f $folder/ports ]] || free_ports >"$folder/ports"
  read -r nfs_port mount_port <"$folder/ports"
  wait_until 5 is_gone "$(server_pid)" || die "a server of $folder already runs; stop it first" # one that was killed takes a moment
  rm -f "$folder/pid" # the next one writes over it without making it shorter
  write_config
  exec 9>/run/lock/ckptengine-nfs.lock
  flock -w 60 9 || die "another NFS server has been starting for more than 60 s; try again later"
  portmapper=
  trap end_portmapper EXIT
  start_portmapper
  : >"$folder/ganesha.log"
  setsid ganesha.nfsd -F -f "$folder/ganesha.conf" -L "$folder/ganesha.log" -p "$folder/pid" >/dev/null 2>&1 9>&- &
  wait_until 20 server_serves || die "nfs-ganesha did not start (log: $folder/ganesha.log)"
  echo "nfs://127.0.0.1/ckpt?nfsport=$nfs_port&mountport=$mount_port"
}

stop() {
  local pid
  pid=$(server_pid)
  if ! is_gone "$pid"; then
    kill "$pid"
    kill -CONT "$pid"
    wait_until 5 is_gone "$pid" || kill -KILL "$pid"
    wait_until 5 is_gone "$pid" || die "the server of $folder did not end within 5 s"
  fi
  rm -f "$folder/pid"
  ! mountpoint -q "$folder/export" || umount "$folder/export"
}

[[ $# -ge 1 ]] || usage_error "give a command: start or stop"
case "$1" in
  --help | -h) show_help; exit ;;
esac
[[ $# -ge 2 ]] || usage_error "give a folder"
folder=$(mkdir -p "$2" && cd "$2" && pwd)
size=${3:-}
[[ $EUID -eq 0 ]] || die "only root can run an NFS server; run this as root"
case "$1" in
  start) start ;;
  stop) stop ;;
  *) usage_error "unknown command '$1'" ;;
esac
