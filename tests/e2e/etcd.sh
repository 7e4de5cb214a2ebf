# Two nodes on an etcd of three members, while a client with persistent handles writes: a member is killed, then its quorum is lost and
# comes back. The client meets no error; without a quorum the owner stops in time, and changes are refused.
# two at once: 45
# limit: 600
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
readonly LEASE=3
declare -A pid port=([n1]=$(free_port) [n2]=$(free_port)) nodes=([n1]=$(free_port) [n2]=$(free_port)) client_port peer_port
initial= endpoints=
for e in e1 e2 e3; do
  client_port[$e]=$(free_port) peer_port[$e]=$(free_port)
  initial+=${initial:+,}$e=http://127.0.0.1:${peer_port[$e]} endpoints+=${endpoints:+,}http://127.0.0.1:${client_port[$e]}
done
member_up() { etcd_member "$1" "${client_port[$1]}" "${peer_port[$1]}" "$initial"; pid[$1]=$etcd_pid; }
member_down() { kill -9 "${pid[$1]}"; wait "${pid[$1]}" 2>/dev/null || true; unset "pid[$1]"; }
healthy() { etcd_healthy "${client_port[$1]}"; }
end_all() { for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null || true; done; [[ -z ${worker:-} ]] || kill -9 "$worker" 2>/dev/null || true; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
for e in e1 e2 e3; do member_up $e; done
for e in e1 e2 e3; do until_true 20 healthy $e || { cat "$WORK/$e.log"; fail "etcd does not start"; }; done

up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" --endpoint-mapper 0 "${@:2}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
goes_on() { # goes_on BEFORE WHAT
  until_true 60 bash -c "[ \$(wc -l <'$WORK/c.acked') -gt $(($1 + 20)) ]" || { tail -n 20 "$WORK/client.log"; fail "the client does not go on: $2"; }
  kill -0 "$worker" || { cat "$WORK/client.log"; fail "the client met an error: $2"; }
}
records() { wc -l <"$WORK/c.acked"; }

# Between the second node and a member: answers are late by what $WORK/late says, in seconds.
cat >"$WORK/late.py" <<'P'
import asyncio, sys
here, there, late = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
async def copy(source, to, is_late):
    while data := await source.read(1 << 16):
        if is_late:
            await asyncio.sleep(float(open(late).read()))
        to.write(data)
        await to.drain()
    to.close()
async def serve(reader, writer):
    back, forth = await asyncio.open_connection("127.0.0.1", there)
    await asyncio.gather(copy(reader, forth, False), copy(back, writer, True), return_exceptions=True)
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", here) as server:
        await server.serve_forever()
asyncio.run(main())
P
late_port=$(free_port); echo 0 >"$WORK/late"
python3 "$WORK/late.py" "$late_port" "${client_port[e1]}" "$WORK/late" 2>>"$WORK/late.log" & pid[late]=$!
others=${endpoints#*,}

note "two nodes on three members"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 1g "$WORK/disks/$d"; done
up n1
at n1 user add tester --password pw >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 800m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add ca --volume v --ca >/dev/null
kill "${pid[n1]}"; wait "${pid[n1]}" || fail "the daemon failed"
at n1 cluster init FILES --etcd "$endpoints" --node n1 --lease $LEASE >/dev/null
up n1 --cluster-listen "127.0.0.1:${nodes[n1]}"; until_true 20 owns n1 || fail "the first node does not own the pool"
at n1 cluster token | at n2 cluster join --etcd "http://127.0.0.1:$late_port,$others" --token-stdin --node n2 >/dev/null
up n2 --cluster-listen "127.0.0.1:${nodes[n2]}"
python_client "$ROOT/tests/e2e/restart-client.py" work "127.0.0.1:${port[n2]},127.0.0.1:${port[n1]}" 0 "$WORK/c" >"$WORK/client.log" 2>&1 &
worker=$!
until_true 30 test -s "$WORK/c.acked" || { cat "$WORK/client.log"; fail "the client does not get going"; }
goes_on 0 "at the beginning"

note "a node that has a lease is there for the others, whatever becomes of its key"
alive_key=$(ETCDCTL_API=3 etcdctl --endpoints "$endpoints" get --prefix "" --keys-only | grep '/alive/1$') || fail "the first node has no key"
all_alive() { at n2 node list --json | python3 -c 'import json,sys; n=json.load(sys.stdin); sys.exit(not (len(n) == 2 and all(x["alive"] for x in n)))'; }
until_true 10 all_alive || { at n2 node list; fail "a node is not alive"; }
ETCDCTL_API=3 etcdctl --endpoints "$endpoints" del "$alive_key" >/dev/null
until_true 10 grep -q 'etcd does not say that this node is alive' "$WORK/server.log" || fail "the node does not notice"
until_true 10 all_alive || { at n2 node list; fail "the key of the node does not come back"; }
owns n1 || fail "the owner gave up"
goes_on "$(records)" "after that"

note "a node whose etcd answers late is alive nevertheless"
echo 0.45 >"$WORK/late"
kill -9 "${pid[n2]}"; wait "${pid[n2]}" 2>/dev/null || true
up n2 --cluster-listen "127.0.0.1:${nodes[n2]}"
all_alive_at_n1() { at n1 node list --json | python3 -c 'import json,sys; n=json.load(sys.stdin); sys.exit(not (len(n) == 2 and all(x["alive"] for x in n)))'; }
until_true 20 all_alive_at_n1 || fail "the node is not alive"
sleep 4; all_alive_at_n1 || { at n1 node list; tail -n 20 "$WORK/server.log"; fail "the node has a lease and is not alive"; }
echo 0 >"$WORK/late"

note "each member is killed once, and comes back"
for e in e1 e2 e3; do
  before=$(records); member_down $e; sleep $((LEASE + 2))
  owns n1 || fail "the owner gave up without $e"
  goes_on "$before" "without $e"
  at n2 user add "of-$e" --password pw >/dev/null || fail "no changes without $e"
  member_up $e; until_true 20 healthy $e || fail "$e does not come back"
done
says 'of-e3' at n1 user list || fail "a change was lost"

note "the quorum is lost"
member_down e1; member_down e2
until_true $((LEASE * 2 + 2)) bash -c "! '$ARDEN' --state '$WORK/n1' pool list --json | grep -q '\"state\": *\"owned\"'" || fail "the owner goes on without a quorum"
expect 1 "a change without a quorum" at n2 user add nobody --password pw
grep -qi 'etcd' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "etcd is not named"; }
sleep 1; stopped=$(records); sleep 2
[[ $(records) == "$stopped" ]] || fail "something is acknowledged without a lease"
member_up e1; member_up e2
goes_on "$stopped" "after the quorum came back"
owns n1 || owns n2 || fail "nobody owns the pool"
! at n1 user list | grep -q nobody || fail "a change that was refused is there"

note "what was acknowledged is there"
touch "$WORK/c.stop"
wait "$worker" || { cat "$WORK/client.log"; fail "the client: $(tail -n 1 "$WORK/client.log")"; }
worker=
tail -n 1 "$WORK/client.log"
mkdir "$WORK/ca"
PORT=${port[n2]} SHARE=ca client -c "lcd $WORK/ca; prompt off; mget *" >/dev/null 2>&1
python_client "$ROOT/tests/e2e/restart-client.py" verify "127.0.0.1:${port[n2]}" 0 "$WORK/c" "$WORK/ca" /nonexistent
for n in n1 n2; do kill "${pid[$n]}"; status=0; wait "${pid[$n]}" || status=$?; unset "pid[$n]"; [[ $status == 0 ]] || fail "node $n ended with $status"; done
