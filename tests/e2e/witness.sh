# The witness service of a cluster of two nodes with a real etcd, against Samba's client: bindings for Python and smbtorture. A moved
# pool is a SHARE_MOVE, a node that is killed a RESOURCE_CHANGE and an IP_CHANGE, an administrator's move and a drain a CLIENT_MOVE. Nodes
# are 127.0.0.1 and 127.0.0.2; the endpoint mapper has port 135 where this user may have it, and is not tested elsewhere.
# two at once: 14
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
/usr/bin/python3 -c 'import samba.dcerpc.witness' 2>/dev/null || skip "needs Samba's bindings for Python"
readonly LEASE=3
port=$(free_port) witness=$(free_port) nodes=$(free_port) mapper=135
python3 -c 'import socket; socket.create_server(("127.0.0.2", 135))' 2>/dev/null || mapper=$(free_port)
declare -A pid
end_all() { for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null || true; done; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
etcd_alone; pid[etcd]=$etcd_pid

up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.${1#n}:$port" --witness "$witness" --endpoint-mapper "$mapper" "${@:2}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
up_node() { up "$1" --cluster-listen "127.0.0.${1#n}:$nodes"; }
samba() { /usr/bin/python3 -B "$ROOT/tests/e2e/witness-client.py" "$@"; }
# registers NAME HOST VERSION SHARE ADDRESS FLAGS KEEPALIVE: a client that waits, and writes what it is told to $WORK/NAME
registers() {
  local name=$1 host=$2; shift 2
  samba wait "$host" "$witness" sign tester%pw "$@" >"$WORK/$name" 2>&1 &
  pid[$name]=$!
  until_true 15 grep -q registered "$WORK/$name" || { cat "$WORK/$name"; fail "$name does not register"; }
}
told() { # told NAME PATTERN
  wait "${pid[$1]}" || { cat "$WORK/$1"; fail "$1 failed"; }
  grep -Eq "$2" "$WORK/$1" || { cat "$WORK/$1"; fail "$1 was not told of $2"; }
  echo "$1: $(tail -n 1 "$WORK/$1")"; unset "pid[$1]"
}

note "a cluster of two nodes"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 512m "$WORK/disks/$d"; done
printf '#!/bin/bash\ncase $(grep ^action=) in action=status) exit 2;; *) exit 0;; esac\n' >"$WORK/agent"; chmod 755 "$WORK/agent"
up n1
at n1 user add tester --password pw >/dev/null; at n1 user add other --password pw >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 256m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add ca --volume v --ca >/dev/null
at n1 share add secret --volume v --allow other:read >/dev/null
says 'refused' python3 -c "import socket
try: socket.create_connection(('127.0.0.1', $witness))
except ConnectionRefusedError: print('refused')" || fail "a daemon without a cluster has a witness"
kill "${pid[n1]}"; wait "${pid[n1]}" || fail "the daemon failed"
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease $LEASE >/dev/null
up_node n1; until_true 20 owns n1 || fail "the first node does not own the pool"
at n1 pool set tank --fence "agent:$WORK/agent" >/dev/null
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up_node n2
both() { samba list 127.0.0.2 "$witness" sign | grep -q 'n1 127.0.0.1'; }
until_true 15 both || { tail "$WORK/server.log"; fail "no interface list"; }

note "interfaces, by every way to log on"
for level in sign seal sign,ntlm seal,ntlm sign,spnego seal,spnego; do
  samba list 127.0.0.2 "$witness" "$level" >"$WORK/list" || fail "$level"
  grep -q '^n1 127.0.0.1 version 20000 state 1 flags 5$' "$WORK/list" && grep -q '^n2 127.0.0.2 version 20000 state 1 flags 1$' "$WORK/list" ||
    { cat "$WORK/list"; fail "$level: wrong interfaces"; }
done
cat "$WORK/list"
if [[ $mapper == 135 ]]; then samba list 127.0.0.2 - sign >/dev/null || fail "the endpoint mapper"; echo "found by the endpoint mapper"; fi

note "who is refused"
for case in "connect tester%pw" "packet tester%pw" "sign tester%wrong" "sign nobody%pw" "sign anonymous"; do
  read -r level login <<<"$case"
  says '^error c00000\(22\|6d\|9a\)' samba refused 127.0.0.2 "$witness" "$level" "$login" || fail "not refused: $case"
  echo "$case: $(cat "$WORK/tmp/out")"
done
says 'error 490' samba handles 127.0.0.2 "$witness" sign tester%pw other%pw || fail "another user's handle"
says 'WERR_INVALID_STATE' samba wait 127.0.0.2 "$witness" sign tester%pw 2 secret 127.0.0.1 0 60 || fail "a share that is not the user's"
says '^256 of 2000$' samba many 127.0.0.2 "$witness" sign tester%pw 2000 || fail "registrations are not limited"

note "smbtorture"
# Register and RegisterEx ask srvsvc for a share between their cases, with the same signing inside of the pipe, which Arden refuses as
# SMB has signed already. The test goes on, and its last failure is the one that is shown: that has to be this one.
for test in GetInterfaceList Register RegisterEx UnRegister; do
  smbtorture "ncacn_ip_tcp:127.0.0.2[$witness,sign]" -U tester%pw --option="torture:net_name=FILES" --option="smb ports=$port" \
    "rpc.witness.witness.$test" >"$WORK/tmp/torture" 2>&1 || true
  if grep -q '^success' "$WORK/tmp/torture"; then echo "rpc.witness.$test: success"; continue; fi
  [[ $test == Register* && $(grep -c 'witness\.c:' "$WORK/tmp/torture") == 1 ]] && grep -q 'failed to setup srvsvc connection' "$WORK/tmp/torture" ||
    { cat "$WORK/tmp/torture"; fail "smbtorture $test"; }
  echo "rpc.witness.$test: as far as the witness goes"
done

note "a pool that is moved"
registers moved 127.0.0.2 2 ca 127.0.0.1 0 60
at n1 pool move tank --to n2 >/dev/null
told moved 'SHARE_MOVE 127.0.0.2:1'
registers back 127.0.0.1 2 ca 127.0.0.2 0 60
at n1 pool move tank --to n1 >/dev/null
told back 'SHARE_MOVE 127.0.0.1:1'
# Who is connected to another node than the owner is told of it at once.
registers elsewhere 127.0.0.1 2 ca 127.0.0.2 0 60
told elsewhere 'SHARE_MOVE 127.0.0.1:1'

note "a client that asks for the owner"
redirect() { python_client "$ROOT/tests/e2e/redirect-client.py" "$1" "$port" ca >"$WORK/redirect" 2>&1 || { cat "$WORK/redirect"; fail "redirect of a client of $1"; }; paste -sd ' ' "$WORK/redirect"; }
# CONTINUOUS_AVAILABILITY, CLUSTER, ASYMMETRIC, REDIRECT_TO_OWNER
[[ $(redirect 127.0.0.2) == "redirected 127.0.0.1 capabilities 0x1d0" ]] || { cat "$WORK/redirect"; fail "no redirect to the owner"; }
[[ $(redirect 127.0.0.1) == "served here capabilities 0x1d0" ]] || { cat "$WORK/redirect"; fail "the owner redirects"; }
cat "$WORK/redirect"

note "a client that is moved"
registers client 127.0.0.2 1 - 127.0.0.1 0 60
registers client2 127.0.0.2 2 - 127.0.0.1 0 60
at n1 session move client.example.org --to n2
told client 'CLIENT_MOVE 127.0.0.2:9'
told client2 'CLIENT_MOVE 127.0.0.2:9'
expect 4 "an unknown node" at n1 session move client.example.org --to n9

note "a node that is drained"
registers drained 127.0.0.2 1 - 127.0.0.1 0 60
at n1 node drain n1 >/dev/null
told drained 'CLIENT_MOVE 127.0.0.2:9'
# Who comes later is told at once.
registers late 127.0.0.2 2 ca 127.0.0.1 0 60
told late 'CLIENT_MOVE 127.0.0.2:9'
at n1 node resume n1 >/dev/null
at n1 pool move tank --to n1 >/dev/null
# The witness looks at the cluster five times a second: until then the owner is the one of before, and who registers is told of that.
sleep 0.6

note "a call that waits too long"
registers idle 127.0.0.2 2 ca 127.0.0.1 0 2
told idle 'error 5b4'

note "a node that is killed"
registers failed 127.0.0.2 1 - 127.0.0.1 0 60
registers addresses 127.0.0.2 2 - 127.0.0.2 1 60
kill -9 "${pid[n1]}"; wait "${pid[n1]}" 2>/dev/null || true; began=$(date +%s%N)
told failed 'RESOURCE_CHANGE n1 255'
echo "after $((($(date +%s%N) - began) / 1000000)) ms, with a lease of $LEASE s"
told addresses 'IP_CHANGE 127.0.0.1:11'
says 'n1 127.0.0.1 version 20000 state ff' samba list 127.0.0.2 "$witness" sign || fail "the killed node is available"
registers returns 127.0.0.2 1 - 127.0.0.1 0 60
up_node n1
told returns 'RESOURCE_CHANGE n1 1$'
