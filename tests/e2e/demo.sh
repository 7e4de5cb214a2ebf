# `arden serve --demo`: the printed lines work, Ctrl-C ends it, and an idle daemon is small.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "only Arden has a demo"
PORT=$(free_port)
"$ARDEN" --state "$STATE" serve --listen "127.0.0.1:$PORT" --demo "$WORK/demo" >"$WORK/demo.out" 2>"$WORK/server.log" &
server_pid=$!
until_true 10 grep -q 'Ctrl-C' "$WORK/demo.out" || fail "it prints nothing: $(cat "$WORK/server.log")"
line=$(grep '^ *smbclient //' "$WORK/demo.out")
until_true 5 bash -c "$line -c ls" || fail "the smbclient line does not work: $line"
says Arden bash -c "$line -c 'get Welcome.txt -'" || fail "Welcome.txt"
grep -q "mount -t cifs //127.0.0.1/demo /mnt -o port=$PORT,username=demo,password=" "$WORK/demo.out" || fail "no mount line"
grep -q 'New-SmbMapping' "$WORK/demo.out" || fail "no line for Windows"
sleep 1
kib=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$server_pid/status")
echo "idle: $kib KiB resident"
((kib < 30 * 1024)) || fail "an idle daemon takes $kib KiB"
kill -INT "$server_pid"; status=0; wait "$server_pid" || status=$?; server_pid=
[[ $status == 0 ]] || fail "Ctrl-C ended it with $status"
