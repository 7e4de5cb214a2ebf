# The kernel's nbd and ext4 in a guest: a tree is copied onto a parity space while one of its disks is pulled, read back
# after a remount, and the file system checked; then the pool is repaired and another disk pulled.
# long: 60
# limit: 600
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "spaces are Arden's alone"
for p in nbd-client mkfs.ext4 e2fsck; do command -v $p >/dev/null || skip "$p is not installed"; done
start
for i in 0 1 2 3 4; do truncate -s 512M "$WORK/d$i"; done
arden pool create tank "$WORK"/d[0-3] >/dev/null
arden space create vm --pool tank --layout parity --size 400m >/dev/null
nbd=$(free_port)
arden space export vm --nbd "127.0.0.1:$nbd"
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cat >"$job/main" <<M
#!/bin/sh
set -e
b=/sbin/busybox
sums() { (cd /tmp/m/tree && find . -type f | LC_ALL=C sort | xargs sha256sum) >/job/\$1; }
nbd-client 10.0.2.2 $nbd /dev/nbd0 -N vm
if [ -e /job/again ]; then
  e2fsck -fn /dev/nbd0
  mkdir /tmp/m; \$b mount -t ext4 /dev/nbd0 /tmp/m
  sums sums3; \$b umount /tmp/m
  nbd-client -d /dev/nbd0
  exit 0
fi
mkfs.ext4 -q /dev/nbd0
mkdir /tmp/m; \$b mount -t ext4 /dev/nbd0 /tmp/m; mkdir /tmp/m/tree
touch /job/copying
cp -r /usr/include/linux /tmp/m/tree/
cp /usr/bin/b* /tmp/m/tree/
\$b sync; touch /job/copied; sums sums1
\$b umount /tmp/m; \$b mount -t ext4 /dev/nbd0 /tmp/m
sums sums2; \$b umount /tmp/m
e2fsck -fn /dev/nbd0
nbd-client -d /dev/nbd0
M
chmod +x "$job/main"
note "copying while a disk goes"
export GUEST_MODULES="nbd ext4 crc32c_generic"
"$ROOT/tests/guest/boot" "$job" 280 & guest=$!
until_true 200 test -e "$job/copying" || { wait $guest || true; fail "the guest did not come to copying"; }
sleep 1; rm "$WORK/d1"
status=0; wait $guest || status=$?
[[ $status == 0 ]] || fail "the guest ended with $status"
mkdir "$WORK/want"; cp -r /usr/include/linux "$WORK/want/"; cp /usr/bin/b* "$WORK/want/"
(cd "$WORK/want" && find . -type f | LC_ALL=C sort | xargs sha256sum) >"$WORK/sums"
for s in sums1 sums2; do cmp "$WORK/sums" "$job/$s" || fail "$s: what was read is not what was copied"; done
says degraded arden space show vm || fail "a lost disk, and the space is not degraded"
note "$(wc -l <"$WORK/sums") files; repair, then without another disk"
arden pool add-disk tank "$WORK/d4" >/dev/null
arden pool repair tank
says whole arden space show vm || fail "not whole after the repair"
rm "$WORK/d2"
touch "$job/again"
"$ROOT/tests/guest/boot" "$job" 200 || fail "the guest ended with $?"
cmp "$WORK/sums" "$job/sums3" || fail "without a second disk: what was read is not what was copied"
stop
