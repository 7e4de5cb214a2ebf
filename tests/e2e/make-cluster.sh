# `scripts/cluster`, which `make cluster` runs: the printed lines work, a killed node's share is served by another and the node comes back,
# Ctrl-C ends all, and the next start serves the same.
# long: 50
# limit: 200
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ -x /usr/bin/etcd ]] || skip "there is no etcd"
PORT=$(free_port) NODES_PORT=$(free_port) ETCD_PORT=$(free_port) ETCD_PEERS_PORT=$(free_port)
export ARDEN PORT NODES_PORT ETCD_PORT ETCD_PEERS_PORT
script=
end_all() { [[ -z $script ]] || { kill -TERM "$script" 2>/dev/null; wait "$script" || true; }; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
begin() {
  rm -f "$WORK/out"
  "$ROOT/scripts/cluster" "$WORK/cluster" >"$WORK/out" 2>&1 & script=$!
  until_true 90 grep -q 'Ctrl-C' "$WORK/out" || { cat "$WORK/out"; tail -n 20 "$WORK"/cluster/*.log; fail "it prints nothing"; }
  line=$(sed -n 's/^ *\(smbclient .*\)/\1/p' "$WORK/out")
}
begin; first=$line
head -c 3000000 /dev/urandom >"$WORK/big"
expect 0 "put at a node that owns nothing" bash -c "$line -c 'put $WORK/big big'"
says demo bash -c "$(sed -n 's/^ *\([^ ]* --state [^ ]* cluster show\) .*/\1/p' "$WORK/out")" || fail "cluster show"
kill -9 "$(sed -n 's/^ *kill -9 \([0-9]*\) .*/\1/p' "$WORK/out")"
until_true 20 grep -q 'n[23] owns the pool' "$WORK/out" || { cat "$WORK/out"; fail "no other node owns the pool"; }
until_true 10 bash -c "$line -c 'get big $WORK/again'"
cmp "$WORK/big" "$WORK/again" || fail "other bytes after a failover"
until_true 40 grep -q 'n1 is started again' "$WORK/out" || { cat "$WORK/out"; fail "the node is not started again"; }
back() { "$ARDEN" --state "$WORK/cluster/n2" node list --json | python3 -c 'import json,sys; sys.exit(not all(n["alive"] for n in json.load(sys.stdin)))'; }
until_true 20 back || fail "the node does not come back"
kill -TERM "$script"; status=0; wait "$script" || status=$?; script=
[[ $status == 0 ]] || { cat "$WORK/out"; fail "its end: $status"; }
! pgrep -f "$WORK/cluster/" >/dev/null || fail "something still runs"
begin
[[ $line == "$first" ]] || fail "the line is another one: $line"
expect 0 "get" bash -c "$line -c 'get big $WORK/again2'"
cmp "$WORK/big" "$WORK/again2" || fail "other bytes after a restart"
