# A cluster of two nodes in which one owns everything, and clients use the other: Samba's client and all of smbtorture.
# SUITES="smb2.lock smb2.lease" runs only those; DIRECT=1 uses the owner. BENCH=3 measures rates instead, at a
# daemon without a cluster and at both nodes in turn, three times; RATES="stat random-read" only these. CPU_SHARE=60 with it gives the
# client and each daemon 60 % of a core of their own, as machines of their own have; CPU_PERIOD_US=5000 is how often they get it.
# BESIDE=3 measures one user beside another instead.
# long: 250
# limit: 1500
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
here=$ROOT/tests/smbtorture
declare -A pid port=([n1]=$(free_port) [n2]=$(free_port) [alone]=$(free_port)) nodes=([n1]=$(free_port) [n2]=$(free_port))
end_all() {
  for p in "${pid[@]}"; do kill -9 "$p" 2>/dev/null || true; done
  [[ -z ${shares_at:-} ]] || { wait 2>/dev/null || true; rmdir "$shares_at"/*/ "$shares_at" 2>/dev/null || true; }
}
trap 'status=$?; end_all; on_exit "$status"' EXIT
if [[ -n ${CPU_SHARE:-} ]]; then
  shares_at=$(awk '$3 == "cgroup" && $4 ~ /(^|,)cpu(,|$)/ { print $2; exit }' /proc/mounts)
  [[ -n $shares_at && -w $shares_at/cgroup.procs ]] || skip "CPU_SHARE needs the controller cpu of cgroup v1, mounted and writable"
  shares_at=$shares_at/arden-$$; mkdir "$shares_at"
fi
etcd_alone; pid[etcd]=$etcd_pid

up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.1:${port[$1]}" --endpoint-mapper 0 "${@:2}" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
up_node() { up "$1" --cluster-listen "127.0.0.1:${nodes[$1]}"; }

note "two nodes, and shares that the first owns"
mkdir "$WORK/disks"; for d in 1 2; do truncate -s 6g "$WORK/disks/$d"; done
fence_agent
up n1
at n1 user add tester --password pw >/dev/null
at n1 group member add Administrators tester >/dev/null
at n1 pool create tank "$WORK"/disks/{1,2} >/dev/null
shares=()
for v in test t2 t3 t4 hideunread ca n1 n2; do
  at n1 space create "$v" --pool tank --layout mirror2 --size 4g >/dev/null
  at n1 volume create "$v" --space "$v" >/dev/null
  case $v in hideunread) how=--access-based-enumeration ;; ca | n1 | n2) how=--ca ;; *) how= ;; esac
  at n1 share add "$v" --volume "$v" $how >/dev/null
  mkdir "$WORK/nothing-$v"; shares+=("--share=$v=$WORK/nothing-$v")
done
kill "${pid[n1]}"; wait "${pid[n1]}" || fail "the daemon failed"
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease 3 >/dev/null
up_node n1; until_true 20 owns n1 || fail "the first node does not own the pool"
at n1 pool set tank --fence "agent:$WORK/agent" --fence-option "dir=$WORK" >/dev/null
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up_node n2; until_true 10 at n2 node check || { at n2 node check; fail "the nodes do not reach each other"; }
for n in n1 n2; do echo "${pid[$n]}" >"$WORK/$n.pid"; done

note "Samba's client at the node that owns nothing"
SHARE=ca; PORT=${port[n2]}
head -c 20000000 /dev/urandom >"$WORK/tmp/large"
client -c "mkdir d; put $WORK/tmp/large d\\large; rename d\\large d\\moved" >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "no writing"; }
client -c "get d\\moved $WORK/tmp/back" >"$WORK/tmp/out" 2>&1 && cmp "$WORK/tmp/large" "$WORK/tmp/back" || { cat "$WORK/tmp/out"; fail "other bytes come back"; }
PORT=${port[n1]} client -c "get d\\moved $WORK/tmp/there" >/dev/null 2>&1 && cmp "$WORK/tmp/large" "$WORK/tmp/there" || fail "the owner has something else"
smbclient -L "//$ADDR" -p "$PORT" -U "$LOGIN" >"$WORK/tmp/out" 2>&1
for v in test t2 ca; do grep -q "^\s*$v  *Disk" "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "the share $v is not listed"; }; done
says NT_STATUS_BAD_NETWORK_NAME smbclient "//$ADDR/nothing" -p "$PORT" -U "$LOGIN" -c ls || fail "a share that is not there"
says NT_STATUS_LOGON_FAILURE smbclient "//$ADDR/ca" -p "$PORT" -U tester%wrong -c ls || fail "a wrong password"
at n1 share set t4 --deny tester:full >/dev/null
says NT_STATUS_ACCESS_DENIED smbclient "//$ADDR/t4" -p "$PORT" -U "$LOGIN" -c ls || fail "a user whom the share denies"
at n1 share set t4 --clear-deny >/dev/null

note "sessions and opens of all nodes"
python_client "$ROOT/tests/e2e/hold-client.py" "$PORT" ca 'd\moved' shared >"$WORK/hold" 2>&1 &
pid[hold]=$!
until_true 10 grep -q open "$WORK/hold" || { cat "$WORK/hold"; fail "nothing is open"; }
for n in n1 n2; do
  says 'moved' at $n open list || fail "$n does not list the open file"
  grep -q 'tester  *127.0.0.1:[0-9].*moved.* n1$' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "$n: whose open, and where"; }
  says 'tester  *127.0.0.1:[0-9].* n2$' at $n session list || fail "$n does not list the session"
done
cat "$WORK/tmp/out"
says '^1 sessions of tester closed' at n1 session close --user tester || fail "the session at the other node is not closed"
until_true 5 bash -c "! '$ARDEN' --state '$WORK/n2' open list | grep -q moved" || fail "what a closed session had open stays open"
kill "${pid[hold]}" 2>/dev/null || true; wait "${pid[hold]}" 2>/dev/null || true; unset "pid[hold]"

# share NAME PID...: the processes have CPU_SHARE of one core together.
share() {
  [[ -n ${CPU_SHARE:-} ]] || return 0
  local of=$shares_at/$1 period=${CPU_PERIOD_US:-5000} p; shift
  mkdir -p "$of"
  echo "$period" >"$of/cpu.cfs_period_us"; echo $((period * CPU_SHARE / 100)) >"$of/cpu.cfs_quota_us"
  for p in "$@"; do echo "$p" >"$of/cgroup.procs"; done
}
# Periods of each share, and those in which it was used up.
periods() { [[ -z ${CPU_SHARE:-} ]] || for of in "$shares_at"/*/; do awk -v of="$(basename "$of")" '{ v[$1] = $2 } END { print of, v["nr_periods"], v["nr_throttled"] }' "$of/cpu.stat"; done; }
rates() { # rates NODE PID: the work at the node, with the CPU of the process
  local before; before=$(periods)
  (share client "$BASHPID"; exec "${ARDEN%/*}/arden-lab" work ${RATES:-create read stat rename delete list stream-write stream-read random-read} \
    --to "127.0.0.1:${port[$1]}" --share "$1" --user tester --password pw --pid "$2" 2>&1)
  [[ -z ${CPU_SHARE:-} ]] || join <(sort <<<"$before") <(periods | sort) | awk '{ n = $4 - $2; if (n > 0) printf "%s: its share used up in %d of %d periods\n", $1, $5 - $3, n }'
}

if [[ -n ${BENCH:-} ]]; then
  note "rates without a cluster, at the owner, n1, and at the node that owns nothing, with the CPU of the owner, and of n2 in each second round"
  mkdir "$WORK/others"; for d in 1 2; do truncate -s 6g "$WORK/others/$d"; done
  up alone
  at alone user add tester --password pw >/dev/null
  at alone pool create tank "$WORK"/others/{1,2} >/dev/null
  at alone space create alone --pool tank --layout mirror2 --size 4g >/dev/null
  at alone volume create alone --space alone >/dev/null
  at alone share add alone --volume alone --ca >/dev/null
  for n in alone n1 n2; do share "$n" "${pid[$n]}"; done
  for ((round = 0; round < BENCH; round++)); do
    for n in alone n1; do echo "at $n"; rates "$n" "${pid[$n]}"; done
    of=n$((round % 2 + 1)); echo "at n2, CPU of $of"; rates n2 "${pid[$of]}"
  done
  exit 0
fi

note "what one node owns is administered at either"
same() { # same COMMAND...: both nodes say the same
  at n1 "$@" >"$WORK/tmp/owner" 2>&1; at n2 "$@" >"$WORK/tmp/other" 2>&1
  cmp "$WORK/tmp/owner" "$WORK/tmp/other" || { diff "$WORK/tmp/owner" "$WORK/tmp/other"; fail "the nodes differ: $*"; }
}
at n2 space create made --pool tank --layout mirror2 --size 512m >/dev/null
at n2 volume create made --space made >/dev/null
at n2 share add made --volume made >/dev/null
at n2 share set made --comment "of both" >/dev/null
at n2 quota set made --user tester --hard 100m >/dev/null
at n2 snapshot create made >/dev/null
for what in "space list" "volume list" "volume show made" "quota list made" "snapshot list made" "space show made" "volume check made"; do same $what; done
says "of both" at n1 share list || fail "the share is not at its owner"
says 'tester' at n1 quota list made || fail "the quota is not at its owner"
at n2 pool scrub tank >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "a scrub cannot be begun and waited for elsewhere"; }
says 'there is no volume' at n2 volume show nothing || fail "a volume that nobody has"
SHARE=made PORT=${port[n2]} client -c "put $WORK/tmp/large large" >/dev/null 2>&1 || fail "the new share is not served"
at n2 share remove made >/dev/null
at n2 volume close made >/dev/null
says 'a volume is on space' at n2 space delete made || fail "a space with a volume is deleted without a question"
at n2 space delete made --force >/dev/null
! says made at n1 space list || fail "the space is still there"

note "what a command has changed is in force at every node when it returns"
logs_on() { smbclient "//$ADDR/$1" -p "${port[$2]}" -U new%pw -c ls >/dev/null 2>&1; }
for ((i = 0; i < 3; i++)); do
  for by in "n1 n2" "n2 n1"; do
    read -r one two <<<"$by"
    at $one user add new --password pw >/dev/null
    logs_on t3 $two || fail "a user who was added at $one is not known at $two"
    at $two share add again --volume t3 --ca >/dev/null
    logs_on again $one || fail "a share that was added at $two is not served at $one"
    at $one share set again --deny new:full >/dev/null
    ! logs_on again $two || fail "a right that was taken away at $one is there at $two"
    at $two share remove again >/dev/null
    ! logs_on again $one || fail "a share that was removed at $two is served at $one"
    at $one user remove new >/dev/null
    ! logs_on t3 $two || fail "a user who was removed at $one logs on at $two"
  done
done

note "what is taken away at either node takes effect at once for a client of the node that owns nothing"
at n1 user add victim --password pw >/dev/null
at n1 group add staff >/dev/null
revoked() { # revoked NODE COMMAND...
  local node=$1; shift
  rm -f "$WORK/revoked"
  python_client "$ROOT/tests/e2e/revoked-client.py" 127.0.0.1 "${port[n2]}" t3 victim >"$WORK/revoked" 2>&1 & pid[revoked]=$!
  until_true 15 grep -q writes "$WORK/revoked" || { cat "$WORK/revoked"; fail "$*: victim cannot write before"; }
  at "$node" "$@" >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "$* at $node fails"; }
  until_true 5 grep -q 'refused\|lost' "$WORK/revoked" || { cat "$WORK/revoked"; fail "$* at $node does not end what victim does"; }
  kill "${pid[revoked]}" 2>/dev/null || true; wait "${pid[revoked]}" 2>/dev/null || true; unset "pid[revoked]"
  echo "$* at $node: $(tail -n 1 "$WORK/revoked")"
}
# Other changes at the client's node in the same moment do not hide it.
{ for ((i = 0; i < 400; i++)); do at n2 user set tester --full-name "$i" >/dev/null 2>&1; done; } & pid[busy]=$!
for ((i = 0; i < 5; i++)); do revoked n1 user set victim --disabled; at n1 user set victim --disabled=false >/dev/null; done
kill "${pid[busy]}" 2>/dev/null || true; wait "${pid[busy]}" 2>/dev/null || true; unset "pid[busy]"
for n in n1 n2; do
  revoked $n share set t3 --read-only; at $n share set t3 --read-only=false >/dev/null
  revoked $n share set t3 --deny victim:change; at $n share set t3 --clear-deny >/dev/null
  at $n group member add staff victim >/dev/null; at $n share set t3 --allow staff:change >/dev/null
  revoked $n group member remove staff victim; at $n share set t3 --clear-allow >/dev/null
  revoked $n share set t3 --encrypt; at $n share set t3 --encrypt=false >/dev/null
  revoked $n user passwd victim --password other; at $n user passwd victim --password pw >/dev/null
  revoked $n user set victim --disabled; at $n user set victim --disabled=false >/dev/null
  revoked $n user remove victim; at $n user add victim --password pw >/dev/null
done

note "a user who asks for more at once than a user may have at another node waits, and is not refused"
load() { # load USER READ_PERCENT SECONDS: at n2, 256 MiB at once
  ARDEN_LAB_PASSWORD=pw "${ARDEN%/*}/arden-lab" run streaming --block 8m --outstanding 8 --clients 4 --read "$2" --file-size 256m --warm-up 1s --duration "$3s" --force \
    --target "smb://$1@127.0.0.1:${port[n2]}/test" --out "$WORK/load-$2.json"
}
for percent in 100 0; do load tester "$percent" 2 >"$WORK/load.out" 2>&1 || { cat "$WORK/load.out"; fail "a load of $percent % reads is refused"; }; done
! grep -a ForwardedBytes "$WORK/server.log" || fail "a bound of what a user has at another node is passed"

if [[ -n ${BESIDE:-} ]]; then
  note "how long an open and a close take at n2, alone and beside another user's reads of 8 MiB each over the same node"
  at n1 user add mallory --password pw >/dev/null
  visit() { python_client "$ROOT/tests/e2e/hostile-client.py" 127.0.0.1 "${port[n2]}" tester visit 5 | paste -sd ' '; }
  for ((round = 0; round < BESIDE; round++)); do
    echo "alone: $(visit)"
    load mallory 100 9 >"$WORK/beside.out" 2>&1 & beside=$!
    sleep 4; echo "beside: $(visit)"; wait "$beside" || { cat "$WORK/beside.out"; fail "the load failed"; }
    tail -n 4 "$WORK/beside.out"
  done
  exit 0
fi

note "smbtorture"
options=(); for suite in ${SUITES:-}; do options+=(--suite "$suite"); done
[[ -z ${DIRECT:-} ]] || PORT=${port[n1]}
shares=("${shares[@]:0:4}")
# This one expects a lease break before four opens of a name that is not there are answered. Its rename runs on a thread, these opens do not,
# so that on a busy machine the break can come later; the test acknowledges a lease without a key then.
{ cat "$here/expected-failures.txt"; echo "smb2.lease.rename_wait  sometimes: the break comes later than the answers to four opens on a busy machine; the test does not wait for it"; } >"$WORK/expected"
python3 "$here/run.py" --port "$PORT" --user tester --password pw "${shares[@]}" \
  --expected "$WORK/expected" --compare "$here/samba-4.17.txt" --logs "$ROOT/target/e2e/forwarding" \
  --results "$ROOT/target/e2e/forwarding.results" "${options[@]}"

note "nothing stays behind"
until_true 20 bash -c "'$ARDEN' --state '$WORK/n1' open list --json | tr -d ' \n' | grep -q '^\[\]$'" || { at n1 open list; fail "opens of clients that are gone"; }
for n in n1 n2; do kill "${pid[$n]}"; status=0; wait "${pid[$n]}" || status=$?; unset "pid[$n]"; [[ $status == 0 ]] || fail "node $n ended with $status"; done
