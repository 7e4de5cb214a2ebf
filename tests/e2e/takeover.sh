# A directory that Samba served with NT ACLs, streams and DOS attributes keeps them under Arden, and back again.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "starts both servers itself"
samba_port=$(free_port)
"$ROOT/tests/peers/samba.sh" up "$WORK" "$samba_port" nt test="$DIR"
samba_down() { "$ROOT/tests/peers/samba.sh" down "$WORK"; }
echo content >"$WORK/tmp/file"; head -c 1500 /dev/urandom >"$WORK/tmp/stream"
acl() { python_client "$ROOT/tests/e2e/acl.py" "$ADDR" "$@"; } # PORT PATH [add KIND MASK SID]
report() { # of one server: attributes, times, streams and ACL of the file
  smbclient "//$ADDR/test" -p "$1" -U tester%pw -c 'allinfo d\file' 2>&1 | grep -v '^altname\|access_time\|change_time' | sort
  smbclient "//$ADDR/test" -p "$1" -U tester%pw -c 'get d\file:extra '"$WORK/tmp/back" >/dev/null 2>&1; sha256sum <"$WORK/tmp/back"
  acl "$1" 'd\file'
}
smbclient "//$ADDR/test" -p "$samba_port" -U tester%pw -c "mkdir d; put $WORK/tmp/file d\\file; put $WORK/tmp/stream d\\file:extra; \
utimes d\\file 2001:02:03-04:05:06 2002:02:03-04:05:06 2003:02:03-04:05:06 -1; setmode d\\file +rhs" >/dev/null
acl "$samba_port" 'd\file' add 0 0x120089 S-1-5-32-551 >/dev/null
acl "$samba_port" 'd\file' add 1 0x10000 S-1-5-32-546 >/dev/null
# The two servers' accounts have different SIDs: what the user may do under Arden comes from this entry.
acl "$samba_port" 'd\file' add 0 0x1f01ff S-1-1-0 >/dev/null
report "$samba_port" >"$WORK/tmp/under-samba"; samba_down
cat "$WORK/tmp/under-samba"
grep -q 'attributes: .*RHS' "$WORK/tmp/under-samba" && grep -q ':extra:' "$WORK/tmp/under-samba" && grep -q S-1-5-32-546 "$WORK/tmp/under-samba" ||
  fail "Samba did not take what this test rests on"
start
note "under Arden"
report "$PORT" >"$WORK/tmp/under-arden"
diff "$WORK/tmp/under-samba" "$WORK/tmp/under-arden" || fail "Arden shows something else than Samba did"
note "changed by Arden, read by Samba"
client -c "setmode d\\file -rhs; mkdir e; put $WORK/tmp/file e\\new; put $WORK/tmp/stream e\\new:more; setmode e\\new +h" >"$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "changes under Arden"; }
acl "$PORT" 'e\new' add 0 0x1200a9 S-1-5-32-551 >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "the access list under Arden"; }
acl "$PORT" 'e\new' add 0 0x1f01ff S-1-1-0 >/dev/null
stop
# Arden's own process does all access, and what it makes belongs to its user; Samba acts as the Unix user.
chmod -R a+rwX "$DIR/e"
SERVER=arden "$ROOT/tests/peers/samba.sh" up "$WORK" "$samba_port" nt test="$DIR"
says 'attributes: .*H' smbclient "//$ADDR/test" -p "$samba_port" -U tester%pw -c 'allinfo e\new' || fail "Samba does not see the attribute"
grep -q ':more:.*1500 bytes' "$WORK/tmp/out" || { cat "$WORK/tmp/out"; fail "Samba does not see the stream"; }
smbclient "//$ADDR/test" -p "$samba_port" -U tester%pw -c "get e\\new:more $WORK/tmp/more" >/dev/null 2>&1
cmp "$WORK/tmp/stream" "$WORK/tmp/more" || fail "the stream differs under Samba"
says '^0 0x0 0x001200a9 S-1-5-32-551$' acl "$samba_port" 'e\new' || fail "Samba does not see the access list"
says 'attributes: A\? *(\(20\|0\|80\))' smbclient "//$ADDR/test" -p "$samba_port" -U tester%pw -c 'allinfo d\file' || fail "attributes that Arden cleared are still set"
samba_down
