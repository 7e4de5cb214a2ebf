# `arden serve --demo`: the printed lines work, what is written is there after kill -9, Ctrl-C ends it, and an idle daemon is small.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "only Arden has a demo"
PORT=$(free_port)
demo() {
  # What the last one printed must not be taken for this one's.
  rm -f "$WORK/demo.out"
  "$ARDEN" --state "$STATE" serve --listen "127.0.0.1:$PORT" --demo "$WORK/demo" >"$WORK/demo.out" 2>>"$WORK/server.log" &
  server_pid=$!
  until_true 20 grep -q 'Ctrl-C' "$WORK/demo.out" || fail "it prints nothing: $(cat "$WORK/server.log")"
  line=$(grep '^ *smbclient //' "$WORK/demo.out")
  until_true 5 bash -c "$line -c ls" || fail "the smbclient line does not work: $line"
}
demo; first=$line
says Arden bash -c "$line -c 'get Welcome.txt -'" || fail "Welcome.txt"
grep -q "mount -t cifs //127.0.0.1/demo /mnt -o port=$PORT,username=demo,password=" "$WORK/demo.out" || fail "no mount line"
grep -q 'New-SmbMapping' "$WORK/demo.out" || fail "no line for Windows"
arden share list --json | tr -d ' \n' | grep -q '"name":"demo".*"continuously_available":true' || fail "the share is not continuously available"
says mirror2 arden space list || fail "the volume is not mirrored"
sleep 1
kib=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$server_pid/status")
echo "idle: $kib KiB resident"
((kib < 30 * 1024)) || fail "an idle daemon takes $kib KiB"
disks=$(du -k --total "$WORK/demo"/disk* | tail -n 1 | cut -f 1)
((disks < 1536 * 1024)) || fail "the disk files are not sparse: $disks KiB"

# The same share, user and password after kill -9, with what was acknowledged; and without the state.
head -c 3000000 /dev/urandom >"$WORK/big"
expect 0 "put" bash -c "$line -c 'put $WORK/big big'"
kill_hard; demo
[[ $line == "$first" ]] || fail "the line is another one: $line"
expect 0 "get" bash -c "$line -c 'get big $WORK/again'"
cmp "$WORK/big" "$WORK/again" || fail "other bytes after kill -9"
kill_hard; rm -rf "$STATE"; demo
expect 0 "get without the old state" bash -c "$line -c 'get big $WORK/again2'"
cmp "$WORK/big" "$WORK/again2" || fail "other bytes with a new state"
kill -INT "$server_pid"; status=0; wait "$server_pid" || status=$?; server_pid=
[[ $status == 0 ]] || fail "Ctrl-C ended it with $status"
# A directory with other things is left alone.
mkdir "$WORK/other"; touch "$WORK/other/mine"
expect 6 "a directory of somebody" arden serve --listen 127.0.0.1:0 --demo "$WORK/other"
