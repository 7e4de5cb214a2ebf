# smbclient: a real tree in and out, every dialect, encryption, and what its commands reach.
# long: 39
# limit: 600
source "$(dirname "$0")/../lib.sh"
start

note "a real tree of at least 5,000 files"
tree=$WORK/tmp/tree; mkdir -p "$tree"
# Enough of what every machine has; names that differ only in case cannot live on one share together.
size=0
for source in /usr/share/doc /usr/lib/python3* /usr/include /usr/share/man /usr/share/zoneinfo /usr/share; do
  [[ -d $source ]] || continue
  mkdir -p "$tree/$(basename "$source")"
  (cd "$source" && find . -xdev -type f -size -200k ! -name '*[\\:*?"<>|]*' ! -name '*[. ]' 2>/dev/null | sort -f | awk '!seen[tolower($0)]++' |
    head -n $((6000 - size)) | cpio -pdm --quiet "$tree/$(basename "$source")" 2>/dev/null) || true
  size=$(find "$tree" -type f | wc -l)
  ((size < 5500)) || break
done
# cpio made directories before the files' names were folded: drop directories that differ only in case.
echo "$size files, $(du -sh "$tree" | cut -f1)"
((size >= 5000)) || fail "this machine has only $size files to copy"
sums "$tree" >"$WORK/tmp/want"
began=$SECONDS
client -c "recurse on; prompt off; lcd $tree; mkdir in; cd in; mput *" >"$WORK/tmp/put" 2>&1 || { tail -n 5 "$WORK/tmp/put"; fail "mput"; }
echo "put in $((SECONDS - began)) s"
! grep -v '^putting file' "$WORK/tmp/put" | grep -i 'NT_STATUS' || fail "mput said so"
sums "$DIR/in" >"$WORK/tmp/got"
cmp "$WORK/tmp/want" "$WORK/tmp/got" || fail "the tree on the share differs: $(diff "$WORK/tmp/want" "$WORK/tmp/got" | head -n 5)"
mkdir "$WORK/tmp/back"; began=$SECONDS
client -c "recurse on; prompt off; lcd $WORK/tmp/back; cd in; mget *" >"$WORK/tmp/get" 2>&1 || { tail -n 5 "$WORK/tmp/get"; fail "mget"; }
echo "got in $((SECONDS - began)) s"
sums "$WORK/tmp/back" >"$WORK/tmp/got"
cmp "$WORK/tmp/want" "$WORK/tmp/got" || fail "the tree that came back differs: $(diff "$WORK/tmp/want" "$WORK/tmp/got" | head -n 5)"
client -c 'deltree in' >"$WORK/tmp/out" 2>&1 || fail "deltree: $(tail -n 3 "$WORK/tmp/out")"
[[ ! -e $DIR/in ]] || fail "deltree left something: $(find "$DIR/in" | head -n 3)"

note "every dialect and every protection"
head -c 3000000 /dev/urandom >"$WORK/tmp/blob"
for dialect in SMB2_02 SMB2_10 SMB3_00 SMB3_02 SMB3_11; do
  for protection in sign encrypt; do
    [[ $protection != encrypt || $dialect != SMB2* ]] || continue
    for signing in '' 'AES-128-GMAC' 'AES-128-CMAC' 'HMAC-SHA256'; do
      [[ -z $signing || $dialect == SMB3_11 && $protection == sign ]] || continue
      more=(); [[ -z $signing ]] || more=("--option=client smb3 signing algorithms=$signing")
      client -m $dialect --option="client min protocol=$dialect" --client-protection=$protection "${more[@]}" \
        -c "put $WORK/tmp/blob blob; get blob $WORK/tmp/blob.back; del blob" >"$WORK/tmp/out" 2>&1 ||
        { cat "$WORK/tmp/out"; fail "$dialect $protection $signing"; }
      cmp "$WORK/tmp/blob" "$WORK/tmp/blob.back" || fail "$dialect $protection $signing: data differs"
      rm "$WORK/tmp/blob.back"
    done
  done
done
for cipher in AES-128-GCM AES-128-CCM AES-256-GCM AES-256-CCM; do
  SHARE=enc client --client-protection=encrypt --option="client smb3 encryption algorithms=$cipher" \
    -c "put $WORK/tmp/blob blob; get blob $WORK/tmp/blob.back; del blob" >"$WORK/tmp/out" 2>&1 || { cat "$WORK/tmp/out"; fail "$cipher"; }
  cmp "$WORK/tmp/blob" "$WORK/tmp/blob.back" || fail "$cipher: data differs"
done
SHARE=enc client -m SMB2_10 -c ls >"$WORK/tmp/out" 2>&1 && fail "a dialect without encryption reaches the encrypted share"
client -m NT1 --option='client min protocol=NT1' -c ls >/dev/null 2>&1 && fail "SMB 1 is spoken"
if [[ $SERVER == arden ]]; then
  client --client-protection=off -c ls >"$WORK/tmp/out" 2>&1 || true # signing is required: the client signs or is refused
fi

note "commands"
echo one >"$WORK/tmp/one"
client -c "mkdir d; put $WORK/tmp/one d\\one; cd d; rename one two; ls; allinfo two" >"$WORK/tmp/out"
grep -q ' two .* 4 ' "$WORK/tmp/out" || fail "$(cat "$WORK/tmp/out")"
grep -q 'stream: \[::$DATA\], 4 bytes' "$WORK/tmp/out" || fail "allinfo: $(cat "$WORK/tmp/out")"
head -c 2000 /dev/urandom >"$WORK/tmp/small" # what an extended attribute of any file system holds
client -c "put $WORK/tmp/small d\\two:stream; allinfo d\\two; get d\\two:stream $WORK/tmp/stream" >"$WORK/tmp/out"
grep -q 'stream: \[:stream:$DATA\], 2000 bytes' "$WORK/tmp/out" || fail "streams: $(cat "$WORK/tmp/out")"
cmp "$WORK/tmp/small" "$WORK/tmp/stream" || fail "the stream differs"
says 'attributes: .*RH' client -c "setmode d\\two +rh; allinfo d\\two" || fail "attributes"
says ' two ' client -c "setmode d\\two -rh; ls d\\TWO" || fail "names do not compare without case"
client -c "put $WORK/tmp/one d\\three; ls d\\t*; ls d\\?wo" >"$WORK/tmp/out"
[[ $(grep -c ' two ' "$WORK/tmp/out") == 2 && $(grep -c ' three ' "$WORK/tmp/out") == 1 ]] || fail "wildcards: $(cat "$WORK/tmp/out")"
client -c "rmdir d" >"$WORK/tmp/out" 2>&1 || true
grep -q NT_STATUS_DIRECTORY_NOT_EMPTY "$WORK/tmp/out" || fail "rmdir of a full directory: $(cat "$WORK/tmp/out")"
says one client -c "scopy d\\two d\\copied; get d\\copied -" || fail "server-side copy"
client -c "du; volume" >"$WORK/tmp/out" || fail "du, volume"
client -c "get ..\\..\\..\\etc\\passwd $WORK/tmp/passwd" >/dev/null 2>&1 && fail "a path leaves the share"
ln -s /etc "$DIR/escape"
client -c "get escape\\passwd $WORK/tmp/passwd" >/dev/null 2>&1 && fail "a symbolic link leaves the share"
rm "$DIR/escape"
SHARE=ro client -c "put $WORK/tmp/one one" >"$WORK/tmp/out" 2>&1 || true
grep -q 'NT_STATUS_ACCESS_DENIED\|NT_STATUS_MEDIA_WRITE_PROTECTED' "$WORK/tmp/out" || fail "the read-only share takes a file"
client -c "lcd $WORK/tmp; put blob d\\blob; reget d\\blob blob.part; del d\\*; rmdir d" >/dev/null || fail "clean up"
[[ -z $(ls -A "$DIR") ]] || fail "something is left: $(ls -A "$DIR")"
says '^\s*test \+Disk' smbclient -L "$ADDR" -p "$PORT" -U "$LOGIN" || fail "the share list"
