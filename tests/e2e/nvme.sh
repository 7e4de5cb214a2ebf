# NVMe reservations on a real target: the kernel's own (nvmet, since Linux 6.13) in a guest, a namespace that is reached over TCP by two
# hosts. One fences the other, also in the middle of a write. What the target keeps when it is taken down is nothing, and it says so.
# no hurry
# long: 60
# limit: 1500
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ $(id -u) == 0 ]] || skip "needs root for the guest"
reservations=${RESERVATIONS:-$(dirname "$ARDEN")/examples/reservations}
[[ -x $reservations ]] || fail "$reservations is not built: make build"
KERNEL=$("$ROOT/tests/downloads" kernel-new) || skip "no packages of a kernel whose NVMe target has reservations (Linux 6.13)"
version=$(<"$KERNEL/version")
export KERNEL GUEST_MODULES="nvmet-tcp nvme-tcp ext4 loop" MODULE_OPTIONS="nvme-core multipath=N"
for module in nvmet-tcp nvme-tcp ext4 loop; do
  modprobe -d "$KERNEL" -S "$version" --show-depends "$module" >/dev/null 2>&1 || skip "the kernel $version has no module $module"
done
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cp "$reservations" "$ROOT/tests/guest/nvme-target" "$job/"

note "one host fences the other"
cat >"$job/main" <<'M'
#!/bin/bash
set -eE
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND ($SECONDS s)"; dmesg | tail -n 30' ERR
exec 2>&1
source /job/nvme-target
r() { /programs/reservations nvme "$@"; }
mkdir -p /back; truncate -s 96m /tmp/loop
loop=$(losetup -f --show /tmp/loop); mkfs.ext4 -q "$loop"; mount -t ext4 "$loop" /back
dd if=/dev/zero of=/back/disk bs=1M count=64 2>/dev/null
back=$(losetup -f --show /back/disk)
resv=0 target_up plain "$loop" 1
r refuse "$(path_of plain 1)"
target_up disk "$back" 2
r refuse /tmp/loop
r refuse "$loop"
r refuse "$(path_of disk 1)"
r work "$(path_of disk 1)" "$(path_of disk 2)" /back
echo "== two nodes with one host identifier ($SECONDS s)"
r show "$(path_of disk 2)"
disconnect disk 1
connect disk 3 2
r same "$(path_of disk 3)"
echo "== the target is taken down ($SECONDS s)"
target_down disk "2 3"
target_up disk "$back" 1
[[ $(r show "$(path_of disk 1)") == "keys: ; reserved for nobody" ]]
echo "   nothing was kept, as it had said ($SECONDS s)"
M
chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" 850
