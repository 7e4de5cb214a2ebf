# The Linux kernel's client (persistenthandles, hard) through one address for both nodes, and smbprotocol with the addresses of both, write
# and lock on a continuously available share while the owner of its pool, and the node that is not, are killed with -9, stopped with SIGSTOP
# and fenced, drained, and the pool is moved, and while the owner's
# writes to all disks fail (disks). No error reaches a program, every acknowledged byte and lock is there.
# ROUNDS=100 LEASE=2 is the long form; KINDS="drain move" has only those of the kinds below. Prints how long programs were not answered,
# and with BOUND=1.0 fails when a planned move took longer than so many seconds.
# long: 200
# limit: 900
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
readonly LEASE=${LEASE:-3} rounds=${ROUNDS:-6}
declare -A pid port=([n1]=$(free_port) [n2]=$(free_port)) nodes=([n1]=$(free_port) [n2]=$(free_port))
worker='' guest=''
end_all() {
  for p in "${pid[@]}" $worker $guest; do kill -9 "$p" 2>/dev/null || true; done
  pkill -9 -f "qemu-system.*path=$WORK/job" 2>/dev/null || true
}
trap 'status=$?; end_all; on_exit "$status"' EXIT
etcd_alone; pid[etcd]=$etcd_pid

# A process whose limit of the size of files is lowered to nothing cannot write to the disks, which another one can.
trap '' XFSZ
up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" --endpoint-mapper 0 "${@:2}" > >(exec cat >>"$WORK/server.log") 2>&1 &
  pid[$1]=$!; echo "${pid[$1]}" >"$WORK/$1.pid"
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
up_node() { up "$1" --cluster-listen "127.0.0.1:${nodes[$1]}"; }
gone() { wait "${pid[$1]}" 2>/dev/null || true; unset "pid[$1]"; }
all_alive() { at "$1" node list --json | python3 -c 'import json,sys; n=json.load(sys.stdin); sys.exit(not (len(n) == 2 and all(x["alive"] for x in n)))'; }
owner() { for n in n1 n2; do if [[ -n ${pid[$n]:-} ]] && timeout 2 "$ARDEN" --state "$WORK/$n" pool list --json 2>/dev/null | grep -q '"state": *"owned"'; then echo $n; return; fi; done; return 1; }
owned_by() { [[ $(owner) == "$1" ]]; }
other() { if [[ $1 == n1 ]]; then echo n2; else echo n1; fi; }

note "two nodes, and two clients"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 2g "$WORK/disks/$d"; done
fence_agent
up n1
at n1 user add tester --password pw >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
at n1 space create s --pool tank --layout mirror2 --size 1500m >/dev/null
at n1 volume create v --space s >/dev/null
at n1 share add ca --volume v --ca >/dev/null
kill "${pid[n1]}"; wait "${pid[n1]}" || fail "the daemon failed"
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease "$LEASE" >/dev/null
up_node n1; until_true 20 owned_by n1 || fail "the first node does not own the pool"
at n1 pool set tank --fence "agent:$WORK/agent" --fence-option "dir=$WORK" >/dev/null
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up_node n2; until_true 20 all_alive n1 || fail "a node is not alive"
front=$(free_port)
python3 "$ROOT/tests/e2e/front.py" "$front" "${port[n1]}" "${port[n2]}" 2>>"$WORK/front.log" & pid[front]=$!

servers=127.0.0.1:${port[n1]},127.0.0.1:${port[n2]}
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cat >"$job/config.json" <<C
{"address": "10.0.2.2", "port": $front, "user": "tester", "password": "pw", "share": "ca"}
C
cp "$ROOT/tests/guest/restart.py" "$job/"
printf '#!/bin/sh\nexec python3 -S /job/restart.py\n' >"$job/main"; chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" "${GUEST_SECONDS:-850}" >"$WORK/guest.log" 2>&1 &
guest=$!
until_true 180 test -e "$job/ready" || { cat "$WORK/guest.log"; fail "the guest does not get going"; }
# Another client's opens take write caching from half of the guest's files: their locks and writes come to the server at once.
python_client "$ROOT/tests/e2e/restart-client.py" share "$servers" 0 "$WORK/c"
python_client "$ROOT/tests/e2e/restart-client.py" refused "$servers" 0 "$WORK/c" 2
python_client "$ROOT/tests/e2e/restart-client.py" work "$servers" 0 "$WORK/c" >"$WORK/client.log" 2>&1 &
worker=$!
until_true 30 test -s "$WORK/c.acked" || { cat "$WORK/client.log"; fail "smbprotocol does not get going"; }

progress() { cat "$job/progress" 2>/dev/null || echo 0; }
# goes_on RECORDS PROGRESS WHAT: both clients, after what they had reached.
goes_on() {
  until_true 60 bash -c "[ \$(wc -l <'$WORK/c.acked') -gt $(($1 + 20)) ]" || { tail -n 20 "$WORK/client.log"; fail "smbprotocol does not go on: $3"; }
  kill -0 "$worker" || { cat "$WORK/client.log"; fail "smbprotocol met an error: $3"; }
  until_true 90 bash -c "! kill -0 $guest || [ \$(cat '$job/progress') -gt $(($2 + 1)) ]" || { cat "$WORK/guest.log"; fail "the guest does not go on: $3"; }
  kill -0 "$guest" 2>/dev/null || { cat "$WORK/guest.log"; fail "the guest met an error: $3"; }
}
# The longest gap that smbprotocol met since the last call. It tells of those longer than 0.3 s.
stalled() {
  local all; all=$(grep -c '^gap' "$WORK/client.log" || true)
  local longest; longest=$(sed -n 's/^gap //p' "$WORK/client.log" | tail -n +$(($(cat "$WORK/tmp/gaps" 2>/dev/null || echo 0) + 1)) | sort -rn | head -n 1)
  echo "$all" >"$WORK/tmp/gaps"; echo "${longest:-less than 0.3 s}"
}

# bounded KIND GAP: a planned move is none for longer than BOUND.
bounded() {
  if [[ -z ${BOUND:-} || ! $1 =~ ^(move|drain|stop)$ || $2 == less* ]]; then return; fi
  awk -v gap="${2% s}" -v bound="$BOUND" 'BEGIN { exit !(gap <= bound) }' || fail "$1 took $2, more than $BOUND s"
}

note "$rounds failovers of mixed kinds (lease $LEASE s)"
read -ra kinds <<<"${KINDS:-kill freeze move kill-other drain stop disks}"
for ((round = 0; round < rounds; round++)); do
  sleep "0.$((RANDOM % 70 + 25))"
  kind=${kinds[round % ${#kinds[@]}]}
  until_true 30 owner || fail "nobody owns the pool"
  old=$(owner) new=$(other "$(owner)")
  records=$(wc -l <"$WORK/c.acked") before=$(progress)
  # A node that was killed seems alive until its lease has ended, and is not until it has another: moves and drains wait.
  case $kind in
    kill) kill -9 "${pid[$old]}"; gone "$old" ;;
    kill-other) kill -9 "${pid[$new]}"; gone "$new" ;;
    freeze) kill -STOP "${pid[$old]}" ;;
    move) until_true 20 at "$old" pool move tank --to "$new" || fail "the pool is not moved" ;;
    drain) until_true 20 at "$old" node drain "$old" || fail "the node is not drained" ;;
    disks) prlimit --pid "${pid[$old]}" --fsize=0:unlimited ;;
    stop) kill "${pid[$old]}"; status=0; wait "${pid[$old]}" || status=$?; unset "pid[$old]"; [[ $status == 0 ]] || fail "the daemon ended with $status" ;;
  esac
  goes_on "$records" "$before" "$kind in round $round"
  case $kind in
    kill | stop) up_node "$old" ;;
    kill-other) up_node "$new"; new=$old ;;
    # The agent ends it, as what it sent to the disks may be on its way.
    freeze | disks) gone "$old"; up_node "$old" ;;
    drain) at "$old" node resume "$old" >/dev/null ;;
  esac
  until_true 20 owned_by "$new" || fail "$new does not own the pool after $kind"
  until_true 20 all_alive "$new" || { at "$new" node list; fail "a node is not alive after $kind"; }
  gap=$(stalled)
  echo "$kind: not answered for $gap; $(wc -l <"$WORK/c.acked") acknowledgements, round $(progress) of the guest"
  bounded "$kind" "$gap"
done

note "what was acknowledged is there"
touch "$WORK/c.stop"
wait "$worker" || { cat "$WORK/client.log"; fail "smbprotocol: $(tail -n 1 "$WORK/client.log")"; }
worker=
tail -n 1 "$WORK/client.log"
# The guest's locks are still there, those that it only kept in its cache too.
python_client "$ROOT/tests/e2e/restart-client.py" refused "$servers" 0 "$WORK/c" 4
touch "$job/stop"
status=0; wait "$guest" || status=$?; guest=
cat "$WORK/guest.log"
[[ $status == 0 ]] || fail "a program in the guest met an error"
mkdir "$WORK/ca"; PORT=$front SHARE=ca client -c "lcd $WORK/ca; prompt off; mget *" >/dev/null 2>&1
python_client "$ROOT/tests/e2e/restart-client.py" verify "$servers" 0 "$WORK/c" "$WORK/ca" "$job/acked.json"
until_true 10 bash -c "'$ARDEN' --state '$WORK/$(owner)' open list --json | tr -d ' \n' | grep -q '^\[\]$'" || fail "handles were left behind"
at "$(owner)" volume check v --data >/dev/null || fail "the volume is not sound"
