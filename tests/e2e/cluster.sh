# A cluster of two nodes, then three, on disk files that all reach, with a real etcd: the owner of the pool is killed with -9,
# stopped with SIGSTOP, and told to hand over, while a client with persistent handles writes and locks. An agent fences. No error
# reaches the client, every acknowledged byte and lock is there. Without a fence nothing is taken over until an administrator is sure.
# etcd speaks TLS and knows its clients by certificates. An emptied etcd is refused. KILLS=100 LEASE=2 is the long form. Prints how long clients were not answered.
# long: 150
# limit: 900
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
readonly LEASE=${LEASE:-3}
kills=${KILLS:-4}
etcd_port=$(free_port) etcd_peer=$(free_port) etcd=https://127.0.0.1:$etcd_port etcd_pid=
declare -A pid port peer

# etcd speaks TLS and wants certificates of its clients. Its own is for clients too: its gateway logs on to itself with it.
authority() { # authority NAME
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$1" -keyout "$WORK/$1.key" -out "$WORK/$1.pem" 2>/dev/null
}
issue() { # issue AUTHORITY NAME
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$WORK/$2.key" -out "$WORK/$2.csr" 2>/dev/null
  openssl x509 -req -in "$WORK/$2.csr" -CA "$WORK/$1.pem" -CAkey "$WORK/$1.key" -CAcreateserial -days 2 -out "$WORK/$2.pem" 2>/dev/null \
    -extfile <(printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n')
  chmod 600 "$WORK/$2.key"
}
authority ca; authority otherca; issue ca etcd; issue ca client; issue otherca stranger
tls=(--etcd-ca "$WORK/ca.pem" --etcd-cert "$WORK/client.pem" --etcd-key "$WORK/client.key")

etcd_up() {
  etcd --name e --client-cert-auth --trusted-ca-file "$WORK/ca.pem" --cert-file "$WORK/etcd.pem" --key-file "$WORK/etcd.key" --data-dir "$WORK/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "http://127.0.0.1:$etcd_peer" --initial-advertise-peer-urls "http://127.0.0.1:$etcd_peer" \
    --initial-cluster "e=http://127.0.0.1:$etcd_peer" --log-level error >>"$WORK/etcd.log" 2>&1 &
  etcd_pid=$!
  until_true 20 env ETCDCTL_API=3 etcdctl --cacert "$WORK/ca.pem" --cert "$WORK/client.pem" --key "$WORK/client.key" --endpoints "$etcd" endpoint health || { cat "$WORK/etcd.log"; fail "etcd does not start"; }
}
etcd_down() { kill -9 "$etcd_pid"; wait "$etcd_pid" 2>/dev/null || true; etcd_pid=; }

# Nodes: their state directories are $WORK/NAME, their process ids are for the agent too.
up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" --cluster-listen "127.0.0.1:${peer[$1]}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!; echo "${pid[$1]}" >"$WORK/$1.pid"
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
# A daemon that is no node yet.
alone() { # alone NODE
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "$1 does not answer"; }
}
gone() { wait "${pid[$1]}" 2>/dev/null || true; pid[$1]=; }
down() { kill "${pid[$1]}"; local status=0; wait "${pid[$1]}" || status=$?; pid[$1]=; [[ $status == 0 ]] || fail "node $1 ended with $status"; }
end_nodes() {
  for n in "${!pid[@]}"; do [[ -z ${pid[$n]} ]] || kill -9 "${pid[$n]}" 2>/dev/null || true; done
  [[ -z $etcd_pid ]] || kill -9 "$etcd_pid" 2>/dev/null || true
  [[ -z ${worker:-} ]] || kill -9 "$worker" 2>/dev/null || true
}
trap 'status=$?; end_nodes; on_exit "$status"' EXIT

field() { python3 -c 'import json,sys; p=json.load(sys.stdin)[0]; print(p["ownership"][sys.argv[1]])' "$1"; }
# The node that serves the pool. One that is stopped does not answer.
owner() {
  for n in "${!pid[@]}"; do
    if [[ -n ${pid[$n]} && $(timeout 2 "$ARDEN" --state "$WORK/$n" pool list --json 2>/dev/null | field state 2>/dev/null) == owned ]]; then
      echo "$n"; return
    fi
  done
  return 1
}
owned_by() { [[ $(owner) == "$1" ]]; }
epoch() { at "$1" pool list --json | field epoch; }
records() { wc -l <"$WORK/c.acked"; }
# Waits until the client is answered again after this many acknowledgements.
goes_on() {
  local before=$1
  until_true 60 bash -c "[ \$(wc -l <'$WORK/c.acked') -gt $((before + 20)) ]" || { tail -n 20 "$WORK/client.log"; fail "the client does not go on: $2"; }
  kill -0 "$worker" || { cat "$WORK/client.log"; fail "the client met an error: $2"; }
}
# The longest gap that the client met since the last call. The client tells of those longer than 0.3 s.
stalled() {
  local all; all=$(grep -c '^gap' "$WORK/client.log" || true)
  local longest; longest=$(sed -n 's/^gap //p' "$WORK/client.log" | tail -n +$(($(cat "$WORK/tmp/gaps" 2>/dev/null || echo 0) + 1)) | sort -rn | head -n 1)
  echo "$all" >"$WORK/tmp/gaps"; echo "${longest:-less than 0.3 s}"
}

fence_agent

note "one daemon becomes the first node"
etcd_up
mkdir "$WORK/disks"; for d in 1 2 3; do truncate -s 1g "$WORK/disks/$d"; done
port=([n1]=$(free_port) [n2]=$(free_port) [n3]=$(free_port))
peer=([n1]=$(free_port) [n2]=$(free_port) [n3]=$(free_port))
alone n1
at n1 user add tester --password pw >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2,3} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 800m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add ca --volume v --ca >/dev/null
expect 2 "init while the daemon runs, without the authority of etcd" at n1 cluster init FILES --etcd "$etcd" --node n1
says '^tank  *open' at n1 pool list || fail "the daemon does not serve after an init that was refused"
expect 6 "show without a cluster" at n1 cluster show
down n1
refused() { # refused STATUS SAYS OPTIONS...
  local status=$1 says=$2; shift 2
  expect "$status" "$says" at n1 cluster init FILES --node n1 "$@"
  grep -q -e "$says" "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "init does not say: $says"; }
}
refused 2 "those of the system are not used" --etcd "$etcd"
refused 2 "without TLS" --etcd "http://127.0.0.1:$etcd_port" "${tls[@]}"
refused 2 "no certificate in PEM" --etcd "$etcd" --etcd-ca "$WORK/client.key"
refused 2 "required" --etcd "$etcd" --etcd-ca "$WORK/ca.pem" --etcd-cert "$WORK/client.pem"
refused 1 "if it wants TLS" --etcd "http://127.0.0.1:$etcd_port"
refused 1 "no authority in .*otherca.pem" --etcd "$etcd" --etcd-ca "$WORK/otherca.pem"
refused 1 "wants a certificate of its clients" --etcd "$etcd" --etcd-ca "$WORK/ca.pem"
refused 1 "does not take this node's certificate" --etcd "$etcd" --etcd-ca "$WORK/ca.pem" --etcd-cert "$WORK/stranger.pem" --etcd-key "$WORK/stranger.key"
refused 1 "no connection\|refused" --etcd "https://127.0.0.1:$(free_port)" "${tls[@]}"
at n1 cluster init FILES --etcd "$etcd" "${tls[@]}" --node n1 --lease $LEASE
expect 6 "init twice" at n1 cluster init FILES --etcd "$etcd" "${tls[@]}" --node n1
up n1
until_true 20 owner || { tail "$WORK/server.log"; fail "the first node does not own the pool"; }
at n1 cluster show
expect 6 "reservations of disk files" at n1 pool set tank --fence scsi
grep -q "is no block device" "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "it is not said why"; }
expect 6 "a new pool" at n1 pool create lake "$WORK/disks/1"
at n1 pool set tank --fence "agent:$WORK/agent" --fence-option "dir=$WORK" >/dev/null

note "a second node joins"
token=$(at n1 cluster token)
expect 2 "no token" at n2 cluster join --etcd "$etcd" "${tls[@]}" --token nonsense --node n2
expect 6 "a name that is taken" at n2 cluster join --etcd "$etcd" "${tls[@]}" --token "$token" --node n1
echo "$token" | at n2 cluster join --etcd "$etcd" "${tls[@]}" --token-stdin --node n2
expect 6 "a token used twice" at n3 cluster join --etcd "$etcd" "${tls[@]}" --token "$token" --node n3
up n2
says 'n2' at n1 node list || fail "the first node does not list the second"
says '^owns: tank$' at n2 node show n1 || fail "what the first node owns is not shown"
says '^owns: none$' at n1 node show n2 || fail "the second node is not shown"
expect 4 "a node that is not there" at n1 node show nowhere
! grep -rq "$token" "$WORK/server.log" || fail "the log has a token"
# Each node has a few connections to etcd, and no more after a while.
sleep 3
for n in n1 n2; do
  open=$(ss -Htnp state established "dport = :$etcd_port" | grep -c "pid=${pid[$n]},")
  ((open >= 2 && open <= 5)) || fail "node $n has $open connections to etcd"
  echo "$n: $open connections to etcd"
done

note "the nodes know each other by their certificates"
[[ $(stat -c %a "$WORK/n2/node.pem") == 600 ]] || fail "others can read the key of a node"
for n in n1 n2; do
  until_true 10 at $n node check || { at $n node check; fail "$n does not reach the other"; }
done
at n1 node check
# Whoever else connects is refused: without TLS, with an older one, without a certificate, and with one of its own.
to=127.0.0.1:${peer[n2]}
[[ -z $(timeout 5 python3 -c 'import socket,sys; h,p=sys.argv[1].split(":"); s=socket.create_connection((h,int(p))); s.sendall(b"GET / HTTP/1.0\r\n\r\n"); d=s.recv(100); print("HTTP" if b"HTTP" in d else "")' "$to") ]] || fail "HTTP is answered"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=n1 -keyout "$WORK/own.key" -out "$WORK/own.crt" -days 2 2>/dev/null
strangers=0
stranger() { # stranger WHAT ALERT OPTIONS...
  local what=$1 alert=$2; shift 2
  timeout 10 openssl s_client -ign_eof -connect "$to" "$@" <<<"hello" >"$WORK/tmp/tls" 2>&1 || true
  grep -q "$alert" "$WORK/tmp/tls" || { cat "$WORK/tmp/tls"; fail "$what is not refused"; }
  strangers=$((strangers + 1))
}
stranger "TLS 1.2" "alert protocol version" -tls1_2
stranger "no certificate" "alert certificate required" -tls1_3
stranger "a certificate of its own" "alert access denied" -tls1_3 -cert "$WORK/own.crt" -key "$WORK/own.key"
echo "refused: $strangers kinds of strangers; node n2 says: $(grep -o 'connection of another node was refused: .*' "$WORK/server.log" | sort -u | paste -sd ';')"
at n1 node check >/dev/null || fail "n2 does not answer after strangers"

note "what one node changes, the other has"
at n2 user add second --password pw2 >/dev/null
says second at n1 user list || fail "a user does not come to the other node"

servers=127.0.0.1:${port[n1]},127.0.0.1:${port[n2]},127.0.0.1:${port[n3]}
python_client "$ROOT/tests/e2e/restart-client.py" work "$servers" 0 "$WORK/c" >"$WORK/client.log" 2>&1 &
worker=$!
until_true 30 test -s "$WORK/c.acked" || { cat "$WORK/client.log"; fail "the client does not get going"; }
goes_on 0 "at the beginning"

killed() { # killed ROUND NODES: kill -9 of the owner; another takes over; the killed one comes back.
  local old before=0 new
  old=$(owner) || fail "nobody owns the pool"
  before=$(records); kill -9 "${pid[$old]}"; gone "$old"
  goes_on "$before" "after kill $1"
  new=$(owner) || fail "nobody owns the pool after kill $1"
  [[ $new != "$old" ]] || fail "the killed node owns the pool"
  echo "kill $1 of $2 nodes: $old -> $new, epoch $(epoch "$new"), not answered for $(stalled)"
  up "$old"
}
note "the owner is killed, $kills times (lease $LEASE s)"
for round in $(seq "$kills"); do sleep "0.$((RANDOM % 70 + 25))"; killed "$round" 2; done

note "the owner is stopped in mid-write, and fenced"
old=$(owner); before=$(records); kill -STOP "${pid[$old]}"
goes_on "$before" "after SIGSTOP"
! kill -CONT "${pid[$old]}" 2>/dev/null || ! grep -q '^State:.*[RSD]' "/proc/${pid[$old]}/status" 2>/dev/null || fail "the stopped node lives"
gone "$old"; echo "SIGSTOP: $old -> $(owner), not answered for $(stalled)"
up "$old"

note "the pool is moved"
until_true 20 owner || fail "nobody owns the pool"
if [[ $(owner) == n1 ]]; then order=(n2 n1 n2); else order=(n1 n2 n1); fi
for to in "${order[@]}"; do
  before=$(records); at n2 pool move tank --to $to >/dev/null
  until_true 20 owned_by "$to" || fail "the pool did not move to $to"
  goes_on "$before" "after a move"; echo "moved to $to, not answered for $(stalled)"
done
# To a node that was killed and has just started: by etcd its run of before is alive for a while.
to=${order[1]}; kill -9 "${pid[$to]}"; gone "$to"; up "$to"
before=$(records); at "${order[0]}" pool move tank --to "$to" >/dev/null
until_true 20 owned_by "$to" || fail "the pool did not move to a node that has just started"
goes_on "$before" "after a move to a node that has just started"; echo "moved to $to, which has just started, not answered for $(stalled)"

note "a third node"
at n2 cluster token | at n3 cluster join --etcd "$etcd" "${tls[@]}" --token-stdin --node n3
up n3
before=$(records); at n1 pool move tank --to n3 >/dev/null; goes_on "$before" "at the third node"; stalled >/dev/null
for to in n1 n2 n3; do
  at n1 pool move tank --to $to >/dev/null
  for n in n1 n2 n3; do at $n quota list v >/dev/null || fail "$n does not know the owner right after a move to $to"; done
done
goes_on "$(records)" "after moves"; stalled >/dev/null
for round in 1 2; do killed "$round" 3; done

note "a fence that fails is not passed over"
old=$(owner); touch "$WORK/broken"; kill -STOP "${pid[$old]}"; sleep $((LEASE * 3))
! owner || fail "the pool was taken over without a fence"
kill -CONT "${pid[$old]}"; sleep 1
! owner || fail "the former owner serves again while another waits for its fence"
rm "$WORK/broken"; before=$(records); goes_on "$before" "after the fence was mended"
gone "$old"; up "$old"; stalled >/dev/null

note "without a fence"
until_true 20 owner || fail "nobody owns the pool"
old=$(owner); at "$old" pool set tank --fence none >/dev/null
kill -STOP "${pid[$old]}"; sleep $((LEASE * 3)); ! owner || fail "the pool was taken over without a fence"
before=$(records); kill -CONT "${pid[$old]}"; goes_on "$before" "after SIGCONT"
[[ $(owner) == "$old" ]] || fail "another node has the pool"
echo "the same node went on with epoch $(epoch "$old")"; stalled >/dev/null
kill -9 "${pid[$old]}"; gone "$old"; sleep $((LEASE * 3)); ! owner || fail "the pool was taken over without a fence"
for n in n1 n2 n3; do [[ $n == "$old" ]] || new=$n; done
expect 2 "take without being sure" at "$new" pool take tank
grep -q "$old" "$WORK/tmp/out" || fail "the holder is not named"
before=$(records); at "$new" pool take tank --i-am-sure >/dev/null; goes_on "$before" "after the take"; stalled >/dev/null
up "$old"

note "what was acknowledged is there"
touch "$WORK/c.stop"
wait "$worker" || { cat "$WORK/client.log"; fail "the client: $(tail -n 1 "$WORK/client.log")"; }
worker=
tail -n 1 "$WORK/client.log"
now=$(owner); mkdir "$WORK/ca"
PORT=${port[$now]} SHARE=ca client -c "lcd $WORK/ca; prompt off; mget *" >/dev/null 2>&1
python_client "$ROOT/tests/e2e/restart-client.py" verify "$servers" 0 "$WORK/c" "$WORK/ca" /nonexistent
says '^\[\]$' bash -c "'$ARDEN' --state '$WORK/$now' open list --json | tr -d ' \n'; echo" || fail "handles were left behind"
at "$now" volume check v --data >/dev/null || fail "the volume is not sound"
at "$now" cluster show
says 'the newest that the nodes know' at "$now" cluster upgrade || fail "a new cluster has the newest feature level"

note "a node that stops hands its pool over"
down "$now"; until_true 10 owner || fail "nobody got the pool"
echo "$now -> $(owner)"

note "an emptied etcd is refused"
now=$(owner); etcd_down; rm -rf "$WORK/etcd"; etcd_up
until_true 30 bash -c "! '$ARDEN' --state '$WORK/$now' pool list --json | grep -q '\"state\": \"owned\"'" || fail "the owner goes on"
for n in n1 n2 n3; do [[ -z ${pid[$n]} ]] || { kill -9 "${pid[$n]}"; gone "$n"; }; done
before=$(sha256sum "$WORK"/disks/* | sha256sum)
for n in n1 n2 n3; do
  expect 6 "$n starts with an emptied etcd" timeout 30 "$ARDEN" --state "$WORK/$n" serve --listen "127.0.0.1:${port[$n]}" --cluster-listen "127.0.0.1:${peer[$n]}"
  grep -Eq 'emptied|went back' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "$n does not say why"; }
done
[[ $before == "$(sha256sum "$WORK"/disks/* | sha256sum)" ]] || fail "something was written"

note "a daemon that stands alone does not open a pool of a cluster, unless it is told to"
port[alone]=$(free_port); alone alone
expect 6 "importing a cluster's pool" at alone pool import "$WORK/disks"
grep -q 'belongs to the cluster.*take-from-cluster' <(tr '\n' ' ' <"$WORK/tmp/out") || { cat "$WORK/tmp/out"; fail "it does not say why"; }
[[ $before == "$(sha256sum "$WORK"/disks/* | sha256sum)" ]] || fail "something was written"
at alone pool import "$WORK/disks" --take-from-cluster >/dev/null
says '^tank  *open  *whole' at alone pool list || fail "the pool is not taken from the cluster"
down alone; alone alone
says '^tank  *open  *whole' at alone pool list || fail "the pool is not this daemon's after a restart"
down alone
echo "fenced: $(sort "$WORK/fenced" | uniq -c | paste -sd ' ')"
