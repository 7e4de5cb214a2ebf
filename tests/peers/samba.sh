#!/bin/bash
# Samba as a peer: to check the end-to-end scripts against a server that is known to work, to compare with,
# and to make directories that Arden then takes over.
#   samba.sh up WORK PORT MODE SHARE=DIR...    MODE: plain (its fastest fair settings),
#                                              nt (and NT ACLs and streams), durable (and stable before acknowledged)
#   samba.sh down WORK
# SAMBA_ADDRESS: the one address to listen on; all of this machine without it.
# User `tester`, password `pw`. Everything it writes, but the shares, lies in WORK/samba. While it runs that is a link to
# a directory with a short path: smbd does not start in a long one, as the path of a socket has at most 107 bytes.
set -Eeuo pipefail
trap 'echo "exit $? of line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2' ERR
verb=$1 link=$(realpath -m "$2")/samba
if [[ $verb == down ]]; then
  # smbd, and the RPC daemons that it starts, which have their own process groups.
  for file in "$link"/run/*.pid; do [[ ! -e $file ]] || kill "$(cat "$file")" 2>/dev/null || true; done
  for _ in $(seq 100); do [[ -e $link/run/smbd.pid ]] || break; sleep 0.05; done
  if [[ -L $link ]]; then home=$(readlink "$link"); rm "$link"; mv "$home" "$link"; fi
  exit 0
fi
port=$3 mode=$4; shift 4
if ! command -v smbd >/dev/null || ! command -v smbclient >/dev/null; then
  apt-get install -y -q samba samba-vfs-modules smbclient >/dev/null
fi
mkdir -p "${link%/*}"
if [[ ! -L $link ]]; then
  home=$(mktemp -d /tmp/arden-samba.XXXXXX)
  [[ ! -e $link ]] || { rmdir "$home"; mv "$link" "$home"; }
  ln -s "$home" "$link"
fi
home=$(readlink "$link")
mkdir -p "$home"/{private,lock,state,cache,run,rpc,log}
modules=io_uring sync=no
[[ $mode == plain ]] || modules='acl_xattr streams_xattr io_uring'
[[ $mode != durable ]] || modules='acl_xattr streams_xattr' sync=yes
{
  cat <<C
[global]
  server role = standalone server
  smb ports = $port
  private dir = $home/private
  lock directory = $home/lock
  state directory = $home/state
  cache directory = $home/cache
  pid directory = $home/run
  ncalrpc dir = $home/rpc
  log file = $home/log/%m.log
  log level = ${SAMBA_LOG:-0}
  passdb backend = tdbsam
  load printers = no
  disable spoolss = yes
  server multi channel support = yes
  server min protocol = SMB2_02
  kernel oplocks = no
  kernel share modes = no
  posix locking = no
  use sendfile = yes
  smbd async dosmode = yes
  strict sync = yes
${SAMBA_ADDRESS:+  interfaces = $SAMBA_ADDRESS/8
  bind interfaces only = yes}
  sync always = $sync
C
  for pair in "$@"; do
    name=${pair%%=*} dir=${pair#*=}
    mkdir -p "$dir"; chmod 777 "$dir"
    printf '[%s]\n  path = %s\n  read only = no\n  vfs objects = %s\n' "$name" "$dir" "$modules"
    case $name in
      enc*) echo '  smb encrypt = required' ;;
      ro*) echo '  read only = yes' ;;
    esac
  done
} >"$home/smb.conf"
id tester >/dev/null 2>&1 || useradd -M tester
printf 'pw\npw\n' | smbpasswd -c "$home/smb.conf" -a -s tester >/dev/null
smbd -s "$home/smb.conf" -D
for _ in $(seq 100); do
  smbclient -L "${SAMBA_ADDRESS:-127.0.0.1}" -p "$port" -U tester%pw >/dev/null 2>&1 && exit 0
  sleep 0.1
done
echo "smbd does not answer on port $port, see $home/log" >&2
exit 1
