# A daemon becomes the first node of a cluster while a client writes with persistent handles: no error reaches it. Then pools that come to
# the cluster while it serves, with two nodes and a real etcd: made at one node, imported at the other, renamed; each is used, moved (with
# handles that are merely durable), and taken over like any other. What is not to be believed is refused: a pool that the cluster has, a name that is
# taken, and a pool that is made while etcd does not answer is imported afterwards.
# two at once: 20
# limit: 600
source "$(dirname "$0")/../lib.sh"
source "$ROOT/tests/nodes.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
for program in etcd etcdctl smbclient; do type "$program" >/dev/null 2>&1 || skip "there is no $program"; done
readonly LEASE=3
port=$(free_port) nodes=$(free_port)
declare -A pid
end_all() { for p in "${pid[@]}"; do [[ -z $p ]] || kill -9 "$p" 2>/dev/null || true; done; }
trap 'status=$?; end_all; on_exit "$status"' EXIT
etcd_alone; pid[etcd]=$etcd_pid

up() {
  "$ARDEN" --state "$WORK/$1" serve --listen "127.0.0.${1#n}:$port" --cluster-listen "127.0.0.${1#n}:$nodes" >>"$WORK/server.log" 2>&1 &
  pid[$1]=$!; echo "${pid[$1]}" >"$WORK/$1.pid"
  until_true 20 at "$1" status || { tail -n 30 "$WORK/server.log"; fail "node $1 does not answer"; }
}
gone() { wait "${pid[$1]}" 2>/dev/null || true; pid[$1]=; }
# Of the pool POOL, as NODE says: field NODE POOL NAME
field() { at "$1" pool list --json | python3 -c 'import json,sys; print([p for p in json.load(sys.stdin) if p["name"] == sys.argv[1]][0]["ownership"][sys.argv[2]])' "$2" "$3"; }
owned_by() { [[ $(field "$2" "$1" owner) == "$2" && $(field "$2" "$1" state) == owned ]]; } # owned_by POOL NODE
smb() { smbclient "//127.0.0.$1/$2" -p "$port" -U "$LOGIN" "${@:3}"; } # smb NODE'S NUMBER SHARE ...
holds() { smb "$1" "$2" -c "get file $WORK/tmp/got" >/dev/null 2>&1 && cmp -s "$WORK/tmp/file" "$WORK/tmp/got"; } # holds NODE'S NUMBER SHARE
disks() { mkdir -p "$WORK/disks"; for d in "$@"; do truncate -s 512m "$WORK/disks/$d"; done; }

note "a pool of before"
STATE=$WORK/alone PORT=$(free_port) LISTEN=127.0.0.1 launch
disks old1 old2
"$ARDEN" --state "$WORK/alone" pool create old "$WORK"/disks/old{1,2} >/dev/null
"$ARDEN" --state "$WORK/alone" space create s --pool old --layout mirror2 --size 128m >/dev/null
"$ARDEN" --state "$WORK/alone" volume create ov --space s >/dev/null
disks twin1 twin2
"$ARDEN" --state "$WORK/alone" pool create twin "$WORK"/disks/twin{1,2} >/dev/null
stop

note "a daemon becomes a node while it serves"
disks f1 f2
up n1
at n1 user add tester --password pw >/dev/null
at n1 pool create first "$WORK"/disks/f{1,2} >/dev/null
at n1 space create f --pool first --layout mirror2 --size 256m >/dev/null
at n1 volume create fv --space f >/dev/null
at n1 share add ca --volume fv --ca >/dev/null
expect 1 "an etcd that does not answer" at n1 cluster init FILES --etcd "http://127.0.0.1:$(free_port)" --node n1
at n1 share add files --dir "$DIR" >/dev/null
expect 6 "a share of a directory" at n1 cluster init FILES --etcd "$etcd" --node n1
at n1 share remove files >/dev/null
servers=127.0.0.1:$port,127.0.0.2:$port
python_client "$ROOT/tests/e2e/restart-client.py" work "$servers" 0 "$WORK/c" >"$WORK/client.log" 2>&1 &
pid[worker]=$!
until_true 30 test -s "$WORK/c.acked" || { cat "$WORK/client.log"; fail "the client does not get going"; }
before=$(wc -l <"$WORK/c.acked") began=$SECONDS
at n1 cluster init FILES --etcd "$etcd" --node n1 --lease $LEASE >"$WORK/tmp/init" || { tail -n 30 "$WORK/server.log"; fail "no cluster is made"; }
grep -q 'and serves' "$WORK/tmp/init" || fail "init does not say that the node serves"
until_true 30 bash -c "[ \$(wc -l <'$WORK/c.acked') -gt $((before + 20)) ]" || { tail "$WORK/client.log"; fail "the client does not go on"; }
touch "$WORK/c.stop"
wait "${pid[worker]}" || { cat "$WORK/client.log"; fail "the client met an error: $(tail -n 1 "$WORK/client.log")"; }
pid[worker]=; echo "after $((SECONDS - began)) s; $(sed -n 's/^gap /the client was not answered for /p' "$WORK/client.log" | paste -sd ';')"
expect 6 "init twice" at n1 cluster init FILES --etcd "$etcd" --node n1
owned_by first n1 || fail "the pool did not come along"
at n1 cluster token | at n2 cluster join --etcd "$etcd" --token-stdin --node n2 >/dev/null
up n2
fence_agent; dd if=/dev/urandom of="$WORK/tmp/file" bs=64k count=4 status=none

note "a pool is made at the second node"
disks a b c d
at n2 pool create tank "$WORK"/disks/{a,b} >/dev/null
owned_by tank n2 || { at n2 pool list; fail "the node that made the pool does not own it"; }
[[ $(field n1 tank owner) == n2 ]] || fail "the other node does not know the owner"
at n2 space create s --pool tank --layout mirror2 --size 256m >/dev/null
at n1 volume create v --space s --pool tank >/dev/null || { cat "$WORK/tmp/out"; fail "no volume by way of the other node"; }
at n1 share add made --volume v --ca >/dev/null
smb 1 made -c "put $WORK/tmp/file file" || fail "the share is not served by the other node"
holds 2 made || fail "the owner does not have what was written by the other node"

note "what the cluster has is not made or imported again"
expect 5 "a name that is taken" at n1 pool create tank "$WORK"/disks/{c,d}
expect 6 "a disk in use" at n1 pool create other "$WORK/disks/a"
expect 5 "the same pool" at n1 pool import "$WORK"/disks/{a,b} --name tank
expect 5 "the same pool, taken" at n1 pool import "$WORK"/disks/{a,b} --name tank --take-from-cluster
grep -q 'the cluster has it' "$WORK/tmp/out" || fail "it is not said why"

note "a pool is imported, and renamed"
at n1 pool import "$WORK"/disks/old{1,2} >/dev/null
owned_by old n1 || { at n1 pool list; fail "the node that imported the pool does not own it"; }
at n2 pool rename old older >/dev/null
owned_by older n1 || { at n1 pool list; fail "the pool has no new name"; }
[[ $(field n2 older owner) == n1 ]] || fail "the other node does not know the new name"
at n2 volume attach ov --space s --pool older >/dev/null
says ov at n1 volume list || fail "the volume of the imported pool is not there"

note "two nodes import one pool"
for n in n1 n2; do at $n pool import "$WORK"/disks/twin{1,2} >"$WORK/tmp/twin-$n" 2>&1 & pid[twin-$n]=$!; done
imported=0
for n in n1 n2; do if wait "${pid[twin-$n]}"; then imported=$((imported + 1)); twin=$n; fi; pid[twin-$n]=; done
((imported == 1)) || { cat "$WORK"/tmp/twin-n*; fail "$imported nodes imported one pool"; }
owned_by twin $twin || { at n1 pool list; fail "the node that imported the pool does not own it"; }

note "a pool leaves the cluster, and comes back"
expect 6 "a pool in use leaves" at n2 pool close older
if [[ $twin == n1 ]]; then other=n2; else other=n1; fi
at $other pool close twin >/dev/null
for n in n1 n2; do ! says twin at $n pool list || fail "$n has the pool still"; done
expect 6 "a pool whose labels name a cluster" at $other pool import "$WORK"/disks/twin{1,2}
at $other pool import "$WORK"/disks/twin{1,2} --take-from-cluster >/dev/null
owned_by twin $other || { at $other pool list; fail "the pool did not come back"; }

note "it is moved, and taken over"
for pool in tank older; do at n1 pool set "$pool" --fence "agent:$WORK/agent" --fence-option "dir=$WORK" >/dev/null; done
at n1 share add plain --volume ov >/dev/null
smb 1 plain -c ls || fail "the share of the imported pool is not served"
python_client "$ROOT/tests/e2e/durable-client.py" "$port" plain "$WORK/durable" 127.0.0.1 127.0.0.2 >"$WORK/durable.log" 2>&1 &
pid[durable]=$!
until_true 20 test -e "$WORK/durable.open" || { cat "$WORK/durable.log"; fail "no durable handles"; }
at n1 pool move older --to n2 >/dev/null; owned_by older n2 || fail "the imported pool was not moved"
touch "$WORK/durable.moved"
wait "${pid[durable]}" || { cat "$WORK/durable.log"; fail "durable handles do not go along"; }
pid[durable]=; cat "$WORK/durable.log"
kill -9 "${pid[n2]}"; gone n2
until_true 30 owned_by tank n1 || { tail -n 20 "$WORK/server.log"; fail "a pool that was made is not taken over"; }
until_true 30 owned_by older n1 || fail "a pool that was imported is not taken over"
until_true 10 holds 1 made || fail "the file is not there after the failover"
up n2; until_true 10 holds 2 made || fail "the share is not served by the node that came back"

note "etcd does not answer while a pool is made"
kill -STOP "$etcd_pid"
! timeout 60 "$ARDEN" --state "$WORK/n1" pool create late "$WORK"/disks/{c,d} >"$WORK/tmp/out" 2>&1 || fail "a pool was made without etcd"
grep -q 'tries it again' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "it is not said how it goes on"; }
kill -CONT "$etcd_pid"
# Both have lost their leases, and who was first to have one again has fenced the other.
served() { for n in n1 n2; do if { owned_by tank $n && owned_by older $n; } 2>/dev/null; then echo $n; return; fi; done; return 1; }
until_true 40 served || { tail -n 20 "$WORK/server.log"; fail "the pools do not come back"; }
here=$(served)
at "$here" pool import "$WORK"/disks/{c,d} >/dev/null
owned_by late "$here" || { at "$here" pool list; fail "the pool that was made without etcd is not the cluster's"; }
