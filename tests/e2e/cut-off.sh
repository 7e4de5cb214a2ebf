# Two nodes, of which the second is cut off from etcd alone, frozen, copied and removed while it runs: its clients of the other node's
# pool end soon after its lease, what they had open is free for others, and nobody is served with a password of before. A node that was
# removed while it was frozen changes nothing, and ends.
# two at once: 32
# limit: 600
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
readonly LEASE=3
# The lease at etcd, what nodes take to read that it has ended, and a busy machine.
readonly SOON=$((LEASE + 4))
declare -A pid port=([n1]=$(free_port) [n2]=$(free_port) [copy]=$(free_port)) nodes=([n1]=$(free_port) [n2]=$(free_port) [copy]=$(free_port))
end_all() { for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null || true; done; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
etcd_alone; pid[etcd]=$etcd_pid

up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" --endpoint-mapper 0 "${@:2}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
up_node() { up "$1" --cluster-listen "127.0.0.1:${nodes[$1]}"; }

# Between the second node and etcd.
cat >"$WORK/proxy.py" <<'P'
import asyncio, sys
here, there = int(sys.argv[1]), int(sys.argv[2])
async def copy(source, to):
    while data := await source.read(1 << 16):
        to.write(data)
        await to.drain()
    to.close()
async def serve(reader, writer):
    back, forth = await asyncio.open_connection("127.0.0.1", there)
    await asyncio.gather(copy(reader, forth), copy(back, writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", here) as server:
        await server.serve_forever()
asyncio.run(main())
P
hold() { # at the second node
  python_client "$ROOT/tests/e2e/hold-client.py" "${port[n2]}" test held read >"$WORK/hold" 2>&1 & pid[hold]=$!
  until_true 15 grep -q open "$WORK/hold" || { cat "$WORK/hold"; fail "nothing is open"; }
  says 'held' at n1 open list || fail "the owner does not have the open"
}
hold_ends() { kill "${pid[hold]}" 2>/dev/null || true; wait "${pid[hold]}" 2>/dev/null || true; unset "pid[hold]"; }
takes() { smbclient "//127.0.0.1/test" -p "${port[n1]}" -U tester%pw -c "put $WORK/proxy.py held"; } # at the owner
lists() { timeout 10 smbclient "//127.0.0.1/test" -p "${port[$1]}" -U "$2" -c ls; } # lists NODE USER%PASSWORD
is_alive() { at n1 node list --json | python3 -c 'import json,sys; sys.exit(not any(n["name"] == sys.argv[1] and n["alive"] for n in json.load(sys.stdin)))' "$1"; }
not_alive() { ! is_alive "$1"; }

note "two nodes, of which the second reaches etcd by a proxy"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 1g "$WORK/disks/$d"; done
up n1
at n1 user add tester --password pw >/dev/null; at n1 user add other --password before >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 800m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add test --volume v >/dev/null
kill "${pid[n1]}"; wait "${pid[n1]}" || fail "the daemon failed"
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease $LEASE >/dev/null
up_node n1; until_true 20 owns n1 || fail "the first node does not own the pool"
proxy_port=$(free_port)
python3 "$WORK/proxy.py" "$proxy_port" "${etcd##*:}" 2>>"$WORK/proxy.log" & pid[proxy]=$!
until_true 10 etcd_healthy "$proxy_port" || fail "the proxy does not answer"
at n1 cluster token | at n2 cluster join --etcd "http://127.0.0.1:$proxy_port" --token-stdin --node n2 >/dev/null
up_node n2; until_true 10 at n2 node check || { at n2 node check; fail "the nodes do not reach each other"; }
lists n2 other%before >/dev/null || fail "the share is not served by forwarding"

note "a node that is cut off from etcd alone"
hold; ! takes >/dev/null || fail "the file is not held"
kill -STOP "${pid[proxy]}"; began=$(date +%s%N)
until_true $SOON takes || fail "what a client of the node had open is not free after the lease"
echo "free after $((($(date +%s%N) - began) / 1000000)) ms"
until_true 4 grep -q lost "$WORK/hold" || fail "the client of the node goes on"
hold_ends
at n1 user passwd other --password after >/dev/null
! lists n2 other%before >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "a password of before is good"; }
kill -CONT "${pid[proxy]}"
until_true 20 lists n2 other%after || fail "the node does not serve again"
! lists n2 other%before >/dev/null 2>&1 || fail "a password of before is good"

note "a node that is frozen"
hold; kill -STOP "${pid[n2]}"; began=$(date +%s%N)
until_true $SOON takes || fail "what a client of the frozen node had open is not free after the lease"
echo "free after $((($(date +%s%N) - began) / 1000000)) ms"
kill -CONT "${pid[n2]}"
until_true 5 grep -q lost "$WORK/hold" || fail "the client of the frozen node goes on"
hold_ends
until_true 20 lists n2 tester%pw || fail "the node does not serve again"

note "a copy of a node beside it"
cp -r "$WORK/n2" "$WORK/copy"; rm -f "$WORK"/copy/*.sock
up_node copy; sleep 2
! lists copy tester%pw >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "a copy of a node serves"; }
lists n2 tester%pw >/dev/null || fail "the node itself does not serve beside its copy"
kill -9 "${pid[copy]}"; wait "${pid[copy]}" 2>/dev/null || true; unset "pid[copy]"

note "a node that is removed while it is frozen"
kill -STOP "${pid[n2]}"; until_true $SOON not_alive n2 || fail "the frozen node is alive"
at n1 node remove n2 >/dev/null
kill -CONT "${pid[n2]}"
! timeout 10 "$ARDEN" --state "$WORK/n2" user add evil --password pw >/dev/null 2>&1 || fail "a removed node adds a user"
! timeout 10 "$ARDEN" --state "$WORK/n2" pool set tank --fence none >/dev/null 2>&1 || fail "a removed node sets a fence"
gone() { [[ ! -e /proc/${pid[n2]} ]] || grep -q '^State:.*Z' "/proc/${pid[n2]}/status"; }
until_true 20 gone || fail "the daemon of a removed node runs on"
status=0; wait "${pid[n2]}" || status=$?; unset "pid[n2]"
[[ $status == 6 ]] || fail "the daemon of a removed node ended with $status"
grep -q 'this node was removed from the cluster' "$WORK/server.log" || fail "the daemon does not say why it ended"
! at n1 user list | grep -q evil || fail "a removed node has added a user"
expect 6 "a removed node starts" timeout 30 "$ARDEN" --state "$WORK/n2" serve --listen "127.0.0.1:${port[n2]}" --cluster-listen "127.0.0.1:${nodes[n2]}"
at n2 cluster leave >/dev/null
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up_node n2; until_true 20 lists n2 tester%pw || fail "a node that joins again does not serve"
for n in n1 n2; do kill "${pid[$n]}"; status=0; wait "${pid[$n]}" || status=$?; unset "pid[$n]"; [[ $status == 0 ]] || fail "node $n ended with $status"; done
