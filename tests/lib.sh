#!/bin/bash
# For the end-to-end tests, which source it: a fresh server in a directory of its own, and small checks.
#   start [HOST]    serves $DIR as `test`, $WORK/enc as `enc` (encryption required), $WORK/ro as `ro` (read-only)
#   restart, kill_hard, stop
# Sets ADDR, PORT, LOGIN (user%password). The server ends with the test, whatever happens.
# SERVER=samba runs the same test against Samba, to tell a fault of the test from one of the server.
set -Eeuo pipefail
# A command that fails on its own says which it was: `set -e` says nothing.
trap 'echo "FAILED: exit $? of line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2' ERR
ROOT=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
ARDEN=${ARDEN:-$ROOT/target/release/arden}
SERVER=${SERVER:-arden}
WORK=${WORK:-$(mktemp -d)}
DIR=$WORK/test STATE=$WORK/state ADDR=127.0.0.1 LOGIN=tester%pw PORT=${PORT:-}
mkdir -p "$DIR" "$WORK"/{enc,ro,tmp}; chmod 755 "$WORK"; chmod 777 "$DIR" "$WORK"/{enc,ro}
server_pid=

note() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
arden() { "$ARDEN" --state "$STATE" "$@"; }
# expect WANT WHAT COMMAND...: the exit status of a command.
expect() {
  local want=$1 what=$2 got=0; shift 2
  "$@" >"$WORK/tmp/out" 2>&1 || got=$?
  [[ $got == "$want" ]] || { cat "$WORK/tmp/out"; fail "$what: exit $got, not $want"; }
}
# says PATTERN COMMAND...: what a command prints, whatever its exit status. The output stays in $WORK/tmp/out.
says() {
  local pattern=$1; shift
  "$@" >"$WORK/tmp/out" 2>&1 || true
  grep -q -e "$pattern" "$WORK/tmp/out" || { cat "$WORK/tmp/out"; return 1; }
}
free_port() { "$ROOT/tests/free-port"; }
# Waits until a command succeeds. until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.05; done
}

launch() {
  "$ARDEN" --state "$STATE" serve --listen "$LISTEN:$PORT" >>"$WORK/server.log" 2>&1 &
  server_pid=$!
  until_true 60 arden status || { cat "$WORK/server.log"; fail "the daemon does not answer"; }
}

start() {
  LISTEN=${1:-127.0.0.1}
  [[ -n $PORT ]] || PORT=$(free_port)
  if [[ $SERVER == samba ]]; then
    "$ROOT/tests/peers/samba.sh" up "$WORK" "$PORT" nt test="$DIR" enc="$WORK/enc" ro="$WORK/ro" "${@:2}"
    return
  fi
  launch
  arden user add tester --password pw >/dev/null
  arden share add test --dir "$DIR" >/dev/null
  arden share add enc --dir "$WORK/enc" --encrypt >/dev/null
  arden share add ro --dir "$WORK/ro" --read-only >/dev/null
}

stop() {
  if [[ $SERVER == samba ]]; then
    "$ROOT/tests/peers/samba.sh" down "$WORK"
  elif [[ -n $server_pid ]]; then
    kill "$server_pid" 2>/dev/null || true
    local status=0; wait "$server_pid" || status=$?
    server_pid=
    [[ $status == 0 ]] || fail "the daemon ended with $status: $(tail -n 20 "$WORK/server.log")"
  fi
}

kill_hard() { kill -9 "$server_pid"; wait "$server_pid" 2>/dev/null || true; server_pid=; }

# The daemon must not have panicked, whatever else the test found. on_exit [STATUS]: for a trap that did something before.
on_exit() {
  local status=${1:-$?}
  if [[ -n $server_pid ]]; then kill "$server_pid" 2>/dev/null || true; wait "$server_pid" 2>/dev/null || true; fi
  [[ ! -e $WORK/samba ]] || "$ROOT/tests/peers/samba.sh" down "$WORK"
  if [[ -e $WORK/server.log ]] && grep -q 'panicked at' "$WORK/server.log"; then
    grep -A 3 'panicked at' "$WORK/server.log" >&2; echo "FAILED: the daemon panicked" >&2; status=1
  fi
  exit "$status"
}
trap on_exit EXIT

client() { smbclient "//$ADDR/${SHARE:-test}" -p "$PORT" -U "$LOGIN" "$@"; }
# Names and contents of a tree, to compare with another.
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum); }

# Python with the client libraries.
python_client() {
  local venv; venv=$("$ROOT/tests/downloads" python) || return 1
  "$venv/bin/python" -B "$@"
}
