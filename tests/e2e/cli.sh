# The command line: what it says, what it answers to scripts, and that the state survives.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "only Arden has this command line"

note "without a daemon"
expect 3 "status" arden status
grep -q 'arden serve' "$WORK/tmp/out" || fail "the error does not say what to do"
expect 2 "an unknown verb" arden user dance
expect 0 "help" arden share add --help
grep -q Example: "$WORK/tmp/out" || fail "no example"

start
note "users and groups"
expect 5 "the same user again" arden user add TESTER --password x
echo secret | arden user add alice --full-name 'Alice Example' >/dev/null
expect 4 "an unknown user" arden user remove nobody
expect 0 "group" arden group add staff
expect 0 "member" arden group member add staff alice
expect 6 "built-in group" arden group remove Users
arden user list --json | python3 -c '
import json, sys
users = {u["name"]: u for u in json.load(sys.stdin)}
assert users["alice"]["groups"] == ["staff"] and users["alice"]["full_name"] == "Alice Example", users
assert not any("hash" in k or "password" in k for u in users.values() for k in u), "secrets are shown"'

note "settings"
expect 0 "session lifetime" arden settings set --session-lifetime-seconds 28800
says '"session_lifetime_seconds": 28800' arden settings show --json || fail "the lifetime is not kept"
says 'machine sid *S-1-5-21-' arden settings show || fail "the machine's SID is not shown"
expect 2 "a SID that is none" arden settings set --machine-sid S-1-5-32-544
expect 6 "another SID once there are accounts" arden settings set --machine-sid S-1-5-21-1-2-3

note "shares"
expect 2 "a directory that is not there" arden share add x --dir "$WORK/nowhere"
grep -q 'mkdir' "$WORK/tmp/out" || fail "the error does not say what to do"
expect 5 "the same share again" arden share add Test --dir "$DIR"
expect 2 "an unknown account" arden share add x --dir "$DIR" --allow ghost:read
mkdir "$WORK/staff"; chmod 777 "$WORK/staff"; echo hello >"$WORK/staff/file"
expect 0 "add" arden share add staff --dir "$WORK/staff" --allow staff:change
SHARE=staff
client -c ls >"$WORK/tmp/out" 2>&1 && fail "tester is not in staff and yet gets in"
grep -q NT_STATUS_ACCESS_DENIED "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
LOGIN=alice%secret says hello client -c 'get file -' || fail "alice does not get in"
expect 0 "set" arden share set staff --read-only
LOGIN=alice%secret client -c "put $ROOT/Makefile x" >"$WORK/tmp/out" 2>&1 && fail "a read-only share takes a file"
expect 0 "set" arden share set staff --read-only=false --clear-allow
says ' x ' client -c "put $ROOT/Makefile x; ls" || fail "everybody should write now"
expect 0 "hide" arden share set staff --hidden
says '^\s*test ' smbclient -L "$ADDR" -p "$PORT" -U "$LOGIN" || fail "test is not listed"
! grep -q '^\s*staff ' "$WORK/tmp/out" || fail "a hidden share is listed"
expect 0 "remove" arden share remove staff
client -c ls >/dev/null 2>&1 && fail "a removed share still answers"
[[ -e $WORK/staff/file ]] || fail "removing a share removed files"
unset SHARE

note "directories that should not be shared"
expect 6 "the whole system" arden share add x --dir /
grep -q -e '--force' "$WORK/tmp/out" || fail "the error does not say what to do"
expect 6 "the state directory" arden share add x --dir "$STATE"
expect 6 "what contains it" arden share set test --dir "$WORK"
ln -s /etc "$WORK/tmp/conf"
expect 6 "a link into the system's configuration" arden share add x --dir "$WORK/tmp/conf"
expect 0 "by force" arden share add x --dir "$STATE" --force
expect 0 "remove" arden share remove x
truncate -s 1G "$DIR/disk.img"
expect 6 "a disk in a shared directory" arden pool create tank "$DIR/disk.img"
rm "$DIR/disk.img"

note "names that are no terminal's business"
smbclient "//$ADDR/test" -p "$PORT" -U $'eve\e[31m\nINFO forged%x' -c ls >/dev/null 2>&1 && fail "eve gets in"
grep -q 'eve.*forged' "$WORK/server.log" || fail "the failed logon is not in the log"
! grep -q $'\e' "$WORK/server.log" || fail "an escape sequence is in the log"

note "sessions and opens"
client -c "mkdir held; notify held" >"$WORK/tmp/holder" 2>&1 &
holder=$!
hold() { until_true 10 says held arden open list --json || fail "the open is not listed"; }
hold
arden session list --json | python3 -c '
import json, sys
s = json.load(sys.stdin)
assert len(s) == 1 and s[0]["user"] == "tester" and s[0]["dialect"] == "3.1.1" and s[0]["signing"], s'
open=$(arden open list --json | python3 -c 'import json, sys; print([o["id"] for o in json.load(sys.stdin) if o["path"].endswith("held")][0])')
expect 0 "close the open" arden open close "$open"
expect 4 "close it again" arden open close "$open"
wait "$holder" || true
client -c "notify held" >"$WORK/tmp/holder" 2>&1 &
holder=$!
hold
session=$(arden session list --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')
expect 0 "close the session" arden session close "$session"
[[ $(arden session list --json) == '[]' ]] || fail "the session is still there"
kill "$holder" 2>/dev/null || true; wait "$holder" 2>/dev/null || true
client -c "notify held" >"$WORK/tmp/holder" 2>&1 &
holder=$!
hold
says '1 sessions' arden session close --user TESTER || fail "closing all sessions of a user"
[[ $(arden session list --json) == '[]' ]] || fail "the session is still there"
kill "$holder" 2>/dev/null || true; wait "$holder" 2>/dev/null || true
expect 4 "of nobody" arden session close --user nobody
expect 2 "of whom" arden session close

note "a wrong password, a changed one, a disabled user"
LOGIN=tester%wrong client -c ls >"$WORK/tmp/out" 2>&1 && fail "a wrong password gets in"
grep -q NT_STATUS_LOGON_FAILURE "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
echo new | arden user passwd tester >/dev/null
LOGIN=tester%new client -c ls >/dev/null || fail "the new password does not get in"
arden user set tester --disabled >/dev/null
LOGIN=tester%new client -c ls >/dev/null 2>&1 && fail "a disabled user gets in"
arden user set tester --disabled=false >/dev/null

note "state survives kill -9, and one daemon has it at a time"
expect 6 "a second daemon" arden serve --listen 127.0.0.1:0
kill_hard; launch
LOGIN=tester%new client -c ls >/dev/null || fail "users are gone after kill -9"
says '^arden_shares 3$' arden metrics || fail "metrics"
for command in metrics "status --json" "share list"; do
  { arden $command 2>"$WORK/tmp/err"; echo $? >"$WORK/tmp/status"; } | true
  [[ $(cat "$WORK/tmp/status") == 0 && ! -s $WORK/tmp/err ]] || { cat "$WORK/tmp/err"; fail "$command, of which nobody reads the answer"; }
done
stop
[[ ! -e $STATE/api.sock ]] || fail "the socket is left behind"
