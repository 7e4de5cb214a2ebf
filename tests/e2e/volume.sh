# Volumes: on a file and on a mirrored space, served, killed and opened again, checked, and reached with no server.
# long: 23
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "only Arden has volumes"

fill() {
  mkdir -p "$WORK/tree/sub dir/deep"
  for i in 1 2 3 4 5 6 7 8; do head -c $((i * i * 7001)) /dev/urandom >"$WORK/tree/sub dir/file $i"; done
  head -c 9000000 /dev/urandom >"$WORK/tree/large"; : >"$WORK/tree/sub dir/deep/empty"
}
put_tree() { client -c "lcd $WORK/tree; recurse; prompt; mput *"; }
same_tree() {
  rm -rf "$WORK/back"; mkdir "$WORK/back"
  # smbclient ends with 0 when it could not read some of them.
  client -c "lcd $WORK/back; recurse; prompt; mget *" >"$WORK/tmp/out" 2>&1 && ! grep -q NT_STATUS_ "$WORK/tmp/out" || { cat "$WORK/tmp/out"; return 1; }
  diff -r "$WORK/tree" "$WORK/back"
}

# What is empty goes back to a thin pool at once, not after a minute.
export ARDEN_TEST_GIVE_BACK_MS=200
start; fill
note "a volume on a file"
expect 2 "no device" arden volume create v1
expect 0 "create" arden volume create v1 --file "$WORK/v1.img" --size 300m
expect 5 "again" arden volume create v1 --file "$WORK/other.img" --size 300m
expect 2 "a directory that is not there" arden share add nowhere --volume v1 --path /nowhere
expect 4 "a volume that is not there" arden share add nowhere --volume nothing
expect 0 "share" arden share add vol1 --volume v1
says 'shares: vol1' arden volume show v1 || fail "the share is not shown"
SHARE=vol1
put_tree >"$WORK/tmp/out" 2>&1 || fail "$(cat "$WORK/tmp/out")"
same_tree || fail "what comes back is not what went in"
says 'as it should be' arden volume check v1 --data || fail "check"
client -c 'rename large LARGE; del "sub dir/file 1"; mkdir new; rename LARGE new\large' >"$WORK/tmp/out" 2>&1
mkdir "$WORK/tree/new"; mv "$WORK/tree/large" "$WORK/tree/new/"; rm "$WORK/tree/sub dir/file 1"
same_tree || fail "after renames"
expect 6 "closing under a share" arden volume close v1

note "stopped and started again"
stop; launch
same_tree || fail "after a restart"

note "with no server"
stop
says 'large' "$ARDEN" volume ls "$WORK/v1.img" new || fail "ls"
expect 0 "get" "$ARDEN" volume get "$WORK/v1.img" new/large "$WORK/tmp/large"
cmp "$WORK/tmp/large" "$WORK/tree/new/large" || fail "get gives something else"
expect 0 "put" "$ARDEN" volume put "$WORK/v1.img" "$WORK/tree/sub dir/file 8" 'put there'
cp "$WORK/tree/sub dir/file 8" "$WORK/tree/put there"
launch
same_tree || fail "after a put with no server"
expect 6 "while the daemon has it" "$ARDEN" volume ls "$WORK/v1.img"

note "a write-through share, killed"
expect 0 "share" arden share add wt --volume v1 --path /new --write-through
SHARE=wt client -c "put $ROOT/Cargo.lock lock" >/dev/null
kill_hard; launch
SHARE=wt client -c "get lock $WORK/tmp/lock" >/dev/null
cmp "$WORK/tmp/lock" "$ROOT/Cargo.lock" || fail "what was acknowledged is gone"
says 'as it should be' arden volume check v1 --data || fail "check after the kill"

note "snapshots: previous versions, schedules, and their end"
# A client names a version by its time; smbtorture asks for the same by context.
mkdir -p "$WORK/past/subdir"; echo before >"$WORK/past/file"; echo link >"$WORK/past/subdir/hardlink"
on_v1() { SHARE=vol1 client -c "$1"; }
on_v1 "lcd $WORK/past; recurse; prompt; mput *" >/dev/null
expect 4 "of no volume" arden snapshot create nothing
expect 0 "create" arden snapshot create v1 --label 'before the change'
time1=$(arden snapshot list v1 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[-1]["time"])')
echo after >"$WORK/past/file"; on_v1 "put $WORK/past/file file; del subdir\\hardlink" >/dev/null
says "$time1" on_v1 "allinfo file" || fail "allinfo lists no snapshot"
version() { on_v1 "get $1 $WORK/tmp/version" >/dev/null; cat "$WORK/tmp/version"; }
[[ $(version file) == after ]] || fail "the present is not the present"
[[ $(version "$time1\\file") == before ]] || fail "the past is not the past"
[[ $(version "$time1\\subdir\\hardlink") == link ]] || fail "a deleted file is not in the past"
says 'MEDIA_WRITE_PROTECTED' on_v1 "put $WORK/past/file $time1\\file" || fail "the past was written"
on_v1 "put $WORK/past/subdir/hardlink subdir\\hardlink" >/dev/null
for t in twrp.write twrp.openroot twrp.listdir; do
  smbtorture "//$ADDR/vol1" -p "$PORT" -U "$LOGIN" --target=samba3 --option=torture:twrp_file=file \
    "--option=torture:twrp_snapshot=$time1" "smb2.$t" >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "smb2.$t"; }
  grep -q '^success: ' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "smb2.$t did not run"; }
done
expect 2 "a label of a schedule" arden snapshot create v1 --label @mine
expect 0 "schedule" arden snapshot schedule v1 often --every 1s --keep 2
two_made() { [[ $(arden snapshot list v1 | grep -c @often) == 2 ]]; }
until_true 20 two_made || fail "no snapshots by schedule"
kill_hard; launch
says 'often  *1s  *2' arden snapshot schedule v1 || fail "the schedule is forgotten"
until_true 20 two_made || fail "no snapshots after a restart"
expect 0 "no more" arden snapshot schedule v1 often --remove
expect 4 "delete one that is not there" arden snapshot delete v1 @GMT-2001.01.01-00.00.00
[[ $(version "$time1\\file") == before ]] || fail "the past after a kill"
for t in $(arden snapshot list v1 --json | python3 -c 'import json, sys; print(*(s["time"] for s in json.load(sys.stdin)))'); do
  expect 0 "delete $t" arden snapshot delete v1 "$t"
done
says 'no snapshots' arden snapshot list v1 || fail "some are left"
says 'as it should be' arden volume check v1 --data || fail "check after snapshots"

note "a volume on a mirrored space, continuously available"
truncate -s 400m "$WORK/d1" "$WORK/d2" "$WORK/d3"
arden pool create tank "$WORK"/d1 "$WORK"/d2 "$WORK"/d3 >/dev/null
arden space create vm --pool tank --layout mirror2 --size 300m >/dev/null
expect 0 "create" arden volume create v2 --space vm
expect 0 "share" arden share add vol2 --volume v2 --ca
SHARE=vol2
put_tree >"$WORK/tmp/out" 2>&1 || fail "$(cat "$WORK/tmp/out")"
same_tree || fail "on a space"
kill_hard; launch
until_true 10 same_tree || fail "on a space, after a kill"
says 'as it should be' arden volume check v2 --data || fail "check on a space"
note "a deleted file's slabs go back to the pool"
used() { arden pool show tank --json | python3 -c 'import json, sys; p = json.load(sys.stdin); print((p["total_bytes"] - p["free_bytes"]) >> 20)'; }
head -c 80000000 /dev/urandom >"$WORK/tmp/big"
before=$(used); client -c "put $WORK/tmp/big big" >/dev/null; with=$(used)
((with >= before + 100)) || fail "80 MB took $before to $with MiB of the pool"
client -c "del big" >/dev/null
is_less() { (($(used) <= with - 100)); }
until_true 20 is_less || fail "after the file was deleted the pool still uses $(used) of $with MiB"
client -c "put $WORK/tmp/big big" >/dev/null
(($(used) >= before + 100)) || fail "written again it takes $(used) MiB"
client -c "get big $WORK/tmp/big2; del big" >/dev/null
cmp "$WORK/tmp/big" "$WORK/tmp/big2" || fail "what comes back of it is something else"
same_tree || fail "after slabs went back"
note "a volume on a space, with no server, and with its disks late"
stop
says 'large' "$ARDEN" --state "$STATE" volume ls v2 new || fail "ls by name"
expect 0 "get" "$ARDEN" --state "$STATE" volume get v2 new/large "$WORK/tmp/large2"
cmp "$WORK/tmp/large2" "$WORK/tree/new/large" || fail "get by name gives something else"
for d in d1 d2 d3; do mv "$WORK/$d" "$WORK/late-$d"; done
launch
client -c ls >/dev/null 2>&1 && fail "a share without its disks is served"
for d in d1 d2 d3; do mv "$WORK/late-$d" "$WORK/$d"; done
until_true 30 same_tree || fail "a share whose disks came late is not served"

# Past the page cache, as the server writes: where both meet in it, the kernel fails the disk's next flush, and the disk leaves.
noise() {
  dd if=/dev/urandom of="$WORK/d1" bs=1M seek="$1" count="$2" iflag=fullblock oflag=direct conv=notrunc status=none
}

note "noise over one disk while a client reads and writes"
ARDEN_LAB_PASSWORD=pw "$ARDEN" lab run file-server --target "smb://tester@$ADDR:$PORT/${SHARE:-test}" --verify --outstanding 8 \
  --file-size 48m --warm-up 0s --duration 4s --out "$WORK/noise.json" >"$WORK/noise.out" 2>&1 &
load=$!
while kill -0 "$load" 2>/dev/null; do
  noise $((30 + RANDOM % 200)) 60
  sleep 0.2
done
wait "$load" || { cat "$WORK/noise.out"; fail "a wrong byte, or none"; }
compared=$(python3 -c "import json; d = json.load(open('$WORK/noise.json')); print(sum(r['verified'] for p in d['points'] for r in p['rounds']))")
((compared > 100)) || fail "$compared blocks compared"
# And with nothing in memory: no copy of the noise went over a good one.
kill_hard; launch
until_true 10 same_tree || fail "after noise under load and a kill"

note "scrub and repair"
noise 30 330
says ' [1-9][0-9]* blocks healed, 0 lost' arden volume scrub v2 --rate 0 || fail "a scrub over noise on one disk"
says ' 0 blocks healed, 0 lost' arden volume scrub v2 --rate 0 || fail "a scrub after a scrub"
same_tree || fail "after noise on one disk"
says 'nothing to mend' arden volume repair v2 --dry-run || fail "repair"

note "grow"
expect 0 "space grow" arden space grow vm --size 400m
expect 0 "volume grow" arden volume grow v2
says '400 MiB' arden volume show v2 || fail "not larger"
expect 0 "file grow" arden volume grow v1 --size 400m
says 'as it should be' arden volume check v1 --data || fail "check after growing"

note "a full pool: what was deleted is room at once, for every volume of it"
stop; unset ARDEN_TEST_GIVE_BACK_MS; launch
truncate -s 180m "$WORK/e1" "$WORK/e2"
arden pool create little "$WORK/e1" "$WORK/e2" >/dev/null
for v in a b; do
  arden space create "s$v" --pool little --layout mirror2 --size 320m >/dev/null
  expect 0 "create" arden volume create "v$v" --space "s$v"
  expect 0 "share" arden share add "on-$v" --volume "v$v"
done
head -c 75000000 /dev/urandom >"$WORK/tmp/most"
put_on() { SHARE="on-$1" client -c "put $WORK/tmp/most $2" >"$WORK/tmp/out" 2>&1; }
put_on a first || fail "$(cat "$WORK/tmp/out")"
put_on a second && fail "a pool of 180 MB takes 150"
grep -q DISK_FULL "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
SHARE=on-a client -c "del *" >/dev/null
put_on a third || fail "on the same volume: $(cat "$WORK/tmp/out")"
SHARE=on-a client -c "del third" >/dev/null
put_on b fourth || fail "on another volume: $(cat "$WORK/tmp/out")"
SHARE=on-b client -c "get fourth $WORK/tmp/back" >/dev/null
cmp "$WORK/tmp/back" "$WORK/tmp/most" || fail "what comes back is something else"
for v in a b; do says 'as it should be' arden volume check "v$v" --data || fail "check of v$v"; done

says 'last access: relative' arden volume show v2 || fail "a new volume's policy is not shown"
expect 0 "policy" arden volume set v2 --last-access always
says 'last access: always' arden volume show v2 || fail "the policy is not shown"

note "8.3 names"
says '8.3 names: made' arden volume show v2 || fail "where the 8.3 names of a new volume come from is not shown"
expect 0 "switched on" arden volume set v2 --short-names kept
says '8.3 names: kept' arden volume show v2 || fail "the setting is not shown"
echo small >"$WORK/tmp/small"
client -c "put $WORK/tmp/small \"A long name.text\"" >/dev/null
client -c "ls ALONGN~1.TEX" >"$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
grep -q 'A long name.text' "$WORK/tmp/out" || fail "no entry is found by its 8.3 name: $(cat "$WORK/tmp/out")"
client -c "get ALONGN~1.TEX $WORK/tmp/back" >/dev/null
cmp "$WORK/tmp/back" "$WORK/tmp/small" || fail "an 8.3 name leads elsewhere"
expect 0 "switched off" arden volume set v2 --short-names off
says '8.3 names: off' arden volume show v2 || fail "the setting is not shown"
client -c "put $WORK/tmp/small \"Another name.text\"" >/dev/null
client -c "get ANOTHE~1.TEX $WORK/tmp/back" >"$WORK/tmp/out" 2>&1 && fail "a new name has an 8.3 name"
client -c "get ALONGN~1.TEX $WORK/tmp/back; del \"A long name.text\"; del \"Another name.text\"" >/dev/null
expect 0 "switched on again" arden volume set v2 --short-names kept
expect 2 "nothing to set" arden volume set v2

note "integrity"
client -c "mkdir strict; mkdir strict/below" >/dev/null
expect 0 "a tree is set" arden volume integrity v2 strict --set on --recursive
says '/strict/below  *on' arden volume integrity v2 strict/below || fail "integrity is not shown"
echo inherits >"$WORK/tmp/inherits"
client -c "put $WORK/tmp/inherits strict/below/inherits" >/dev/null
says 'on  *xxh3-64  *4096' arden volume integrity v2 /strict/below/inherits || fail "integrity is not inherited"
client -c "allinfo strict/below/inherits" >"$WORK/tmp/out"
grep -qi 'attributes.*8020' "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
expect 0 "switched off" arden volume integrity v2 strict/below/inherits --set off
says '/strict/below/inherits  *off' arden volume integrity v2 strict/below/inherits || fail "it is still on"
expect 2 "no state" arden volume integrity v2 strict --set sometimes
expect 4 "no such file" arden volume integrity v2 nowhere
says 'no snapshots' arden snapshot list v2 --file strict/below/inherits || fail "a file without snapshots of its streams"
expect 4 "of no file" arden snapshot list v2 --file nowhere

note "quotas"
expect 0 "quota" arden quota set v2 --folder / --hard 60m
says '60 MiB' arden quota list v2 || fail "the quota is not shown"
truncate -s 70m "$WORK/tmp/too large"
client -c "put \"$WORK/tmp/too large\" x" >"$WORK/tmp/out" 2>&1 && fail "a limit was passed"
grep -q DISK_FULL "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
client -c "del x" >/dev/null 2>&1
expect 0 "quota removed" arden quota remove v2 --folder /
says 'as it should be' arden volume check v2 || fail "check of quotas"

note "delete"
expect 6 "deleting under a share" arden volume delete v2
expect 0 "deleting by force" arden volume delete v2 --force
says 'vol2' arden share list && fail "the share of a deleted volume is still there"
expect 6 "nothing is left to open" arden volume attach v2 --space vm
expect 0 "made again" arden volume create v2 --space vm
note "passed"
