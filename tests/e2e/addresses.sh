# Floating addresses of a cluster of two nodes, each in a network namespace of its own, with a bridge between them and a client: the
# address is at the owner of the pool, moves with a planned hand-over and after kill -9, is lost by an owner that is frozen, and is
# never at two nodes for longer than a lease. Prints how long clients could not reach it.
# long: 70
# limit: 400
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ $(id -u) == 0 ]] || skip "needs root for network namespaces"
for program in ip etcd etcdctl smbclient setpriv; do type "$program" >/dev/null 2>&1 || skip "there is no $program"; done
if [[ -z ${HUB:-} ]]; then
  hub=arden-$$
  trap 'for n in "" -n1 -n2; do ip netns del "$hub$n" 2>/dev/null || true; done; on_exit' EXIT
  for n in "" -n1 -n2; do ip netns add "$hub$n" || skip "no network namespaces"; ip -n "$hub$n" link set lo up; done
  ip -n "$hub" link add br0 type bridge 2>/dev/null || skip "no bridges"
  ip -n "$hub" addr add 10.77.0.1/24 dev br0; ip -n "$hub" addr add fd77::1/64 dev br0 nodad; ip -n "$hub" link set br0 up
  for i in 1 2; do
    ip link add "v$i" netns "$hub" type veth peer name eth0 netns "$hub-n$i" || skip "no veth interfaces"
    ip -n "$hub" link set "v$i" master br0 up
    ip -n "$hub-n$i" addr add "10.77.0.1$i/24" dev eth0; ip -n "$hub-n$i" addr add "fd77::1$i/64" dev eth0 nodad; ip -n "$hub-n$i" link set eth0 up
  done
  status=0; HUB=$hub WORK=$WORK ip netns exec "$hub" bash "$0" || status=$?
  exit "$status"
fi
source "$ROOT/tests/nodes.sh"
readonly LEASE=${LEASE:-3} IP=10.77.0.50 IP6=fd77::50
declare -A pid
end_all() { for p in "${pid[@]}"; do [[ -z $p ]] || { kill -9 "$p"; wait "$p"; } 2>/dev/null || true; done; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
export ETCD_IP=10.77.0.1
etcd_alone; pid[etcd]=$etcd_pid

# up NODE [PREFIX OF THE COMMAND...]
up() {
  local node=$1; shift
  ip netns exec "$HUB-$node" "$@" "$ARDEN" --state "$WORK/$node" serve --listen '[::]:445' >>"$WORK/server.log" 2>&1 &
  pid[$node]=$!; echo "${pid[$node]}" >"$WORK/$node.pid"
  until_true 20 at "$node" status || { tail -n 30 "$WORK/server.log"; fail "node $node does not answer"; }
}
gone() { wait "${pid[$1]}" 2>/dev/null || true; pid[$1]=; }
down() { kill "${pid[$1]}"; local status=0; wait "${pid[$1]}" || status=$?; pid[$1]=; [[ $status == 0 ]] || fail "node $1 ended with $status"; }
has() { ip -n "$HUB-$1" -o addr show to "${2:-$IP}" | grep -q .; } # has NODE [ADDRESS]
has_not() { ! has "$@"; }
mac() { ip -n "$HUB-$1" -o link show eth0 | sed 's/.*link.ether \([^ ]*\).*/\1/'; }
knows() { [[ $(ip neigh show "$1") == *$(mac "$2")* ]]; } # the client's neighbours: knows ADDRESS NODE
writes() { timeout 5 smbclient "//${2:-$IP}/ca" -U "$LOGIN" -c "put $WORK/tmp/file $1" >"$WORK/tmp/writes" 2>&1; } # writes NAME [ADDRESS]
ms() { echo $(($(date +%s%N) / 1000000)); }
# Waits until a client writes at the address again: how long that took since the time $1, in ms.
reached() {
  local since=$1 what=$2
  until_true 40 writes "after" || { cat "$WORK/tmp/writes"; tail -n 30 "$WORK/server.log"; fail "the address is not reached: $what"; }
  took=$(($(ms) - since)); echo "$what: reached again after $took ms"
}
# What `address list` says of an address: field NODE ADDRESS NAME
field() { at "$1" address list --json | python3 -c 'import json,sys; print([a for a in json.load(sys.stdin) if a["address"].split("/")[0] == sys.argv[1]][0][sys.argv[2]])' "$2" "$3"; }
says_problem() { [[ $(field "$1" "$2" problem) == *$3* ]]; }

note "two nodes"
fence_agent; echo content >"$WORK/tmp/file"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 1g "$WORK/disks/$d"; done
up n1
at n1 user add tester --password pw >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 400m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add ca --volume v --ca >/dev/null
expect 6 "an address without a cluster" at n1 address add $IP/24 --interface eth0 --pool tank
expect 6 "a list without a cluster" at n1 address list
down n1
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease "$LEASE" >/dev/null
up n1; until_true 20 owns n1 || fail "the first node does not own the pool"
at n1 pool set tank --fence "agent:$WORK/agent" --fence-option "dir=$WORK" >/dev/null
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up n2; until_true 10 at n2 node check || fail "the nodes do not reach each other"

note "what cannot be"
expect 2 "no prefix" at n1 address add $IP --interface eth0 --pool tank
expect 2 "unspecified" at n1 address add 0.0.0.0/24 --interface eth0 --pool tank
expect 2 "multicast" at n1 address add 224.0.0.1/24 --interface eth0 --pool tank
expect 2 "no interface's name" at n1 address add $IP/24 --interface 'a b' --pool tank
expect 4 "no such pool" at n1 address add $IP/24 --interface eth0 --pool lake
expect 6 "a node's own address" at n1 address add 10.77.0.12/24 --interface eth0 --pool tank
expect 4 "nothing to remove" at n1 address remove $IP

note "the owner has it"
# The other node takes the request.
at n2 address add $IP/24 --interface eth0 --pool tank
at n1 address add $IP6/64 --interface eth0 --pool tank >/dev/null
expect 5 "twice" at n1 address add $IP/16 --interface eth1 --pool tank
for ip in $IP $IP6; do until_true 5 has n1 $ip || { at n1 address list; fail "the owner does not take $ip"; }; done
has_not n2 || fail "the other node has it"
writes one || { cat "$WORK/tmp/writes"; fail "no writing at the address"; }
writes six $IP6 || { cat "$WORK/tmp/writes"; fail "no writing at the address of IPv6"; }
at n2 address list
for n in n1 n2; do [[ $(field $n $IP node) == n1 && -z $(field $n $IP problem) && $(field $n $IP6 node) == n1 ]] || fail "$n does not say who has it"; done
left=$(ip -n "$HUB-n1" addr show to $IP | sed -n 's/.*valid_lft \([0-9]*\)sec.*/\1/p')
((left <= LEASE)) || fail "it has a lifetime of $left s"
sleep $((LEASE + 2)); has n1 || fail "it is not renewed"; has n1 $IP6 || fail "that of IPv6 is not renewed"
at n1 node list | grep -q "$IP" && fail "it is named as the node's own"
at n1 address add 127.0.0.50/8 --interface lo --pool tank >/dev/null
until_true 2 has n1 127.0.0.50 || { at n1 address list; fail "an address of loopback is not taken"; }
at n1 address remove 127.0.0.50 >/dev/null; until_true 2 has_not n1 127.0.0.50 || fail "an address of loopback stays"
# Where it is, from now on.
( while sleep 0.03; do
    if has n1 && has n2; then ms >>"$WORK/both"; else echo >>"$WORK/both"; fi
  done ) &
pid[watch]=$!

note "a planned move"
exec 3<>/dev/tcp/$IP/445
began=$(ms); at n1 pool move tank --to n2 >/dev/null
# The client is told that its connection has ended: 0 is the end, above 128 nothing came.
status=0; read -r -t 3 -u 3 _ || status=$?
[[ $status == 1 ]] || fail "the client does not hear that its connection has ended: $status"
exec 3>&-
reached "$began" "planned move"; planned=$took
until_true 2 has n2 && has_not n1 || fail "it is not at the new owner alone"
for ip in $IP $IP6; do [[ -z $(ip neigh show $ip) ]] || knows $ip n2 || { ip neigh; fail "neighbours still have the former owner for $ip"; }; done
writes six $IP6 || fail "no writing at the address of IPv6"
[[ $(field n1 $IP node) == n2 ]] || { at n1 address list; fail "it is listed elsewhere"; }

note "the owner is killed"
for round in 1 2 3; do
  for owner in n2 n1; do
    other=$([[ $owner == n1 ]] && echo n2 || echo n1)
    began=$(ms); kill -9 "${pid[$owner]}"; gone $owner
    reached "$began" "$owner killed"
    ((took < (LEASE + 6) * 1000)) || fail "it took $took ms"
    has $other && has_not $owner || fail "it is not at $other alone"
    up $owner; until_true 10 at $other node check || fail "$owner is not back"
  done
  [[ -n ${KILLS:-} ]] || break
done

note "the owner is frozen, and its fence does not work"
touch "$WORK/broken"; kill -STOP "${pid[n2]}"; began=$(ms)
until_true $((LEASE + 2)) has_not n2 || fail "a frozen node keeps the address"
has_not n2 $IP6 || fail "a frozen node keeps the address of IPv6"
echo "gone after $(($(ms) - began)) ms"
sleep 1; has_not n1 || fail "it is at a node that does not own the pool"
[[ -n $(field n1 $IP problem) ]] || fail "the list does not say that nobody has it"
rm "$WORK/broken"; gone n2
reached "$began" "frozen"
up n2; until_true 10 at n1 node check || fail "n2 is not back"

note "the owner stops"
began=$(ms); down n1; reached "$began" "stop"
up n1; until_true 10 at n2 node check || fail "n1 is not back"

note "what a node cannot do is said, and nothing else fails"
at n1 address add 10.77.0.51/24 --interface nope --pool tank >/dev/null
until_true 5 says_problem n1 10.77.0.51 "no interface nope" || { at n1 address list; fail "no problem with an interface that is not there"; }
ip -n "$HUB-n2" addr add 10.77.0.52/24 dev eth0
at n1 address add 10.77.0.52/24 --interface eth0 --pool tank >/dev/null
until_true 5 says_problem n1 10.77.0.52 "for good" || { at n1 address list; fail "no problem with an address that the machine has"; }
at n1 address list
at n1 address remove 10.77.0.52 >/dev/null; at n1 address remove 10.77.0.51/24 >/dev/null
has n2 10.77.0.52 || fail "an address of the machine was taken away"
ip -n "$HUB-n2" addr del 10.77.0.52/24 dev eth0
has n2 || fail "another address of the network is gone"
down n1; up n1 setpriv --bounding-set=-net_admin --inh-caps=-net_admin
until_true 10 at n2 node check || fail "n1 is not back"
at n2 pool move tank --to n1 >/dev/null
until_true 5 says_problem n2 $IP "CAP_NET_ADMIN" || { at n2 address list; fail "no problem with a right that is not there"; }
writes two 10.77.0.11 || fail "the share is not served without the address"
at n2 pool move tank --to n2 >/dev/null; reached "$(ms)" "back"

note "it is removed"
at n1 address remove $IP >/dev/null
until_true 2 has_not n2 || fail "a node keeps what was removed"
has n2 $IP6 || fail "the other one is gone too"
kill "${pid[watch]}"; pid[watch]=
both=$(grep -c . "$WORK/both" || true)
echo "at both nodes in $both of $(wc -l <"$WORK/both") looks"
longest=$(awk 'NF { if (!since) since = $1; if ($1 - since > longest) longest = $1 - since; next } { since = 0 } END { print longest + 0 }' "$WORK/both")
((longest <= LEASE * 1000)) || fail "it was at both nodes for $longest ms"
for n in n1 n2; do down $n; has_not $n $IP6 || fail "$n keeps an address after its end"; done
echo "planned move: $planned ms; at both nodes for at most $longest ms"
