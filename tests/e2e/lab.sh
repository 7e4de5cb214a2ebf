# `arden lab`: the generator beside fio, loads on files and shares with data compared, what is refused, a tiny run of every
# experiment on Arden and on Samba, reports.
# long: 79
# limit: 600
. "$(dirname "$0")/../lib.sh"
start
export ARDEN_LAB_PASSWORD=pw
cd "$WORK/tmp"
lab() { "$ARDEN" lab "$@"; }
# What has to work, and says everything when it does not. What it printed is in $WORK/tmp/said.
measure() {
  local status=0
  lab "$@" >"$WORK/tmp/said" 2>&1 || status=$?
  ((status == 0)) || {
    { cat "$WORK/tmp/said"; echo "-- the server's log:"; tail -n 20 "$WORK/server.log"; } >&2
    fail "exit $status of: arden lab $*"
  }
}
share="smb://tester@$ADDR:$PORT/test"
short=(--warm-up 50ms --duration 300ms)
field() { python3 -c "import json,sys; d=json.load(open('$1')); print($2)"; }

note "a target that costs nothing"
# By the processor's time, so that it does not matter what else the machine does meanwhile; the best of three.
measure run database --target null --block 4k --outstanding 32 --warm-up 100ms --duration 500ms --rounds 3 --out null.json
rate=$(field null.json "int(1e6 / min(r['client_cpu_us'] for r in d['points'][0]['rounds']))")
((rate >= 70000)) || fail "$rate operations a second of one processor against nothing"

note "files and shares, data compared, nothing left behind"
measure run all --target "$WORK/tmp" --outstanding 1,8 --file-size 8m --verify "${short[@]}" --out file.json
measure run all --target "$WORK/tmp" --clients 3 --outstanding 4 --file-size 8m --verify "${short[@]}" --out files.json
cat "$WORK/tmp/said"
# Each profile as a whole: one window may see nothing while the disk is busy with somebody else's.
for profile in file-copy file-server database streaming; do
  compared=$(field file.json "sum(r['verified'] for p in d['points'] for r in p['rounds'] if p['group'] == '$profile')")
  ((compared > 0)) || fail "$profile: nothing was compared"
done
for how in "" --sign --seal "--clients 3" "--channels 2 --sign" "--channels 2 --seal" --write-through; do
  # shellcheck disable=SC2086
  measure run database --target "$share" --outstanding 8 --file-size 8m --verify $how "${short[@]}" --out share.json
  sed -n 2p "$WORK/tmp/said"
done
measure run file-server --target "$share" --rate 500 --outstanding 64 --file-size 8m "${short[@]}" --out rate.json
[[ $(find "$DIR" "$WORK/tmp" -name 'arden-lab-*.tmp' | wc -l) == 0 ]] || fail "test files are left"

note "a space and a volume, with and without their daemon, and simulated disks"
export ARDEN_STATE=$STATE
truncate -s 512M "$WORK"/disk{1,2}
arden pool create tank "$WORK"/disk[12] >/dev/null
arden space create vm --pool tank --layout mirror2 --size 128m >/dev/null
arden volume create docs --file "$WORK/docs.img" --size 300m >/dev/null
expect 1 "writing to a space that exists" lab run database --target space:vm "${short[@]}" --out x.json
grep -q -- --force "$WORK/tmp/out" || fail "it does not say how"
for target in space:nothing volume:nothing volume:docs/not/there sim:raid7,4,sas sim:mirror3,2,sas; do
  expect 1 "$target" lab run streaming --target $target "${short[@]}" --out x.json
done
own_things() {
  measure run database --target space:vm --force --verify --outstanding 8 --file-size 32m "${short[@]}" --out own.json
  sed -n 2p "$WORK/tmp/said"
  measure run all --target volume:docs --verify --clients 2 --outstanding 8 --file-size 8m "${short[@]}" --out own.json
  sed -n 2,6p "$WORK/tmp/said"
}
own_things
says '"nbd": ""' arden space show vm --json || fail "the space is still exported"
! { arden share list; arden user list; } | grep arden-lab || fail "a user or a share is left"
stop
own_things
expect 3 "a daemon is left" arden status
launch
measure run all --target sim:parity,5,sas --outstanding 8 --file-size 256m "${short[@]}" --out sim.json
sed -n 2,6p "$WORK/tmp/said"

note "profiles of one's own"
printf '[mail]\naccess = "random"\nread = 60\nblock = "32k"\n' >mail.toml
measure run mail --profiles-from mail.toml --target null --outstanding 4 "${short[@]}" --out mail.json

note "what is refused"
head -c 2M /dev/zero >precious
expect 1 "writing to a file that exists" lab run restore --target precious --out x.json
grep -q -- --force "$WORK/tmp/out" || fail "it does not say how"
expect 1 "a file that is too small" lab run streaming --target precious --file-size 1g --out x.json
expect 1 "a server that is not there" lab run database --target "smb://tester@$ADDR:1/test" --out x.json
expect 1 "a share that is not there" lab run database --target "smb://tester@$ADDR:$PORT/nothing" --out x.json
grep -q 'no such share' "$WORK/tmp/out" || fail "it does not say what is wrong"
ARDEN_LAB_PASSWORD=wrong expect 1 "a wrong password" lab run database --target "$share" --out x.json
expect 1 "no room" lab run restore --target "$WORK/tmp" --file-size 900t --out x.json
[[ ! -e x.json && $(tr -d '\0' <precious | wc -c) == 0 ]] || fail "something was written"
mkdir full && mount -t tmpfs -o size=4m none full 2>/dev/null && {
  expect 1 "a full disk" lab run restore --target full/x --file-size 8m --out x.json
  umount full
} || true

note "the server goes away: what was measured is kept, and marked"
reads() { arden metrics | sed -n 's/^arden_requests_total{command="read"} //p'; }
before=$(reads)
lab run database --target "$share" --outstanding 8 --rounds 60 --file-size 8m --warm-up 0s --duration 1s --out gone.json >gone.out 2>&1 &
run=$!
# It goes on for a minute: there is time to see that it began, and to let one round pass.
more() { (($(reads) > before + 100)); }
until_true 30 more || { cat gone.out; fail "nothing is read"; }
sleep 2; kill_hard
status=0; wait $run || status=$?
[[ $status == 1 ]] || { cat gone.out; fail "exit $status"; }
[[ $(field gone.json "(d['complete'], len(d['points']) > 0, bool(d['problem']))") == "(False, True, True)" ]] || { cat gone.out; fail "no partial result"; }
launch

note "the experiments, tiny"
"$ROOT/tests/peers/samba.sh" up "$WORK" "$(free_port)" plain probe="$WORK/probe" >/dev/null 2>&1 && peer=(--samba "$ROOT/tests/peers/samba.sh") || peer=()
"$ROOT/tests/peers/samba.sh" down "$WORK" || true
for e in e1 e2 e3 e6; do
  lab experiment $e --quick --scale 512 --limit 10s --dir "$WORK" "${peer[@]}" --out $e.json >$e.out 2>&1 || { cat $e.out; [[ $e == e3 ]] && grep -q 'time limit' $e.out || fail "$e"; }
  head -n 12 $e.out
done
measure advise --target "$WORK" --duration 50ms --rounds 1 --out advise.json
cat "$WORK/tmp/said"
if [[ ${#peer[@]} -gt 0 ]]; then
  both="['Arden', 'Arden CA over Samba plain', 'Arden plain over Samba plain', 'Samba']"
  [[ $(field e1.json "sorted({r['config'] for r in d['ratios']})") == "$both" ]] || fail "E1 has not both servers, and one over the other"
fi

note "make bench, tiny: every table finds its place"
bench=${ARDEN%/*}/arden-lab
if [[ -x $bench ]]; then
  markers=(volume reads streams)
  for m in "${markers[@]}"; do printf '<!-- bench-%s: begin -->\n<!-- bench-%s: end -->\n' "$m" "$m"; done >page.md
  "$bench" bench --quick --files 100 --random-reads 20000 --only create,reads,streams --modes plain \
    --arden "$ARDEN" "${peer[@]}" --dir "$WORK" --page page.md >bench.out 2>&1 || { cat bench.out; fail "the benchmark"; }
  grep '^|' page.md
  for row in 'volume, beside an echo that sends each answer' 'sequential read, from the disks'; do
    grep -qE "^\| $row.*(yes|\[no\]\(#)" page.md || fail "the page has no row: $row"
  done
  [[ -z $(find "$WORK" -maxdepth 1 -name 'arden-lab-*.tmp') ]] || fail "something is left of the benchmark"
fi

note "reports"
measure report e1.json e2.json e3.json e6.json advise.json file.json --html all.html --csv all.csv
grep -q '<svg' all.html && ! grep -qE 'NaN|(src|href)=' all.html || fail "the page is not whole"
[[ $(wc -l <all.csv) -gt 20 ]] || fail "few figures"
measure compare file.json file.json
grep -q 'no difference shown' "$WORK/tmp/said" || { cat "$WORK/tmp/said"; fail "a result differs from itself"; }

note "beside fio"
if command -v fio >/dev/null; then
  # Other work has the processors too: rough here, `tests/bench/lab-fio` alone shows more.
  "$ROOT/tests/bench/lab-fio" --arden "$ARDEN" --dir "$WORK" --rounds 3 --seconds 0.5 --tolerance 3
fi
