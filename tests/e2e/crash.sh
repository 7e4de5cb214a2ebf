# kill -9 of the daemon under load: nothing that was acknowledged is lost, nothing half-made is left, and it serves
# again in less than a second. The state store too: every user that was added is there.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "kills Arden"
start
log=$WORK/acknowledged best=999999; : >"$log"
for round in 1 2 3 4 5; do
  python_client "$ROOT/tests/e2e/crash-writer.py" "$ADDR" "$PORT" "$round" "$log" >"$WORK/writer.log" 2>&1 &
  writer=$!
  # Users are added meanwhile; those whose command ended are noted.
  (for i in $(seq 1000); do arden user add "u$round-$i" --password x >/dev/null 2>&1 || break; echo "user u$round-$i" >>"$log.users"; done) &
  adder=$!
  before=$(wc -l <"$log"); until_true 20 bash -c "[ \$(wc -l <'$log') -gt $((before + 40)) ]" || { cat "$WORK/writer.log"; fail "the writers do not get going"; }
  sleep "0.$((RANDOM % 90 + 10))"
  kill_hard
  wait "$adder" || true
  began=$(date +%s%N)
  launch
  until_true 5 client -c quit || fail "no client gets in after the restart"
  took=$((($(date +%s%N) - began) / 1000000))
  wait "$writer" || true
  echo "round $round: $(wc -l <"$log") acknowledgements so far, serving again after $took ms (with smbclient's own start)"
  ((took < 5000)) || fail "the restart took $took ms"
  ((took > best)) || best=$took
done
# The best of five: this machine may have been busy with something else.
((best < 1000)) || fail "no restart took less than $best ms"
arden user list --json >"$WORK/users.json"
/usr/bin/python3 - "$log" "$DIR" "$WORK/users.json" <<'P'
import hashlib, json, os, sys
log, top, users = sys.argv[1:]
files, counters, made, begun, gone = {}, {}, set(), set(), set()
for line in open(log):
    what, path, *rest = line.split()
    if what == "file": files[path] = rest[0]
    elif what == "counter": counters[path] = max(int(rest[0]), counters.get(path, 0))
    elif what == "made": made.add(path)
    elif what == "deleting": begun.add(path)
    elif what == "gone": gone.add(path)
faults = []
for path, want in files.items():
    try:
        got = hashlib.sha256(open(os.path.join(top, path), "rb").read()).hexdigest()
    except FileNotFoundError:
        if path not in begun: faults.append(f"{path} was flushed and is gone")
        continue
    if path in gone: faults.append(f"{path} was deleted and is back")
    if got != want: faults.append(f"{path} differs from what was flushed")
for path, want in counters.items():
    got = int(open(os.path.join(top, path), "rb").read())
    if got < want: faults.append(f"{path} holds {got}, {want} was flushed")
faults += [f"{d} is gone" for d in made if not os.path.isdir(os.path.join(top, d))]
# A name that nobody asked for would be a half-made file.
import re
faults += [f"{n} is nobody's" for n in os.listdir(top) if not re.fullmatch(r"(d-)?r\d-t\d-\d{6}|counter-\d", n)]
have = {u["name"] for u in json.load(open(users))}
faults += [f"user {u} is gone" for u in (l.split()[1] for l in open(log + ".users")) if u not in have]
print(f"{len(files)} files, {len(gone)} deletions, {len(made)} directories, {len(have)} users compared; {len(faults)} faults")
print("\n".join(faults[:20]))
sys.exit(bool(faults))
P
