# SCSI persistent reservations on a real target: the kernel's own (LIO) in a guest, a disk that is reached by two iSCSI sessions with
# an initiator each. One path fences the other, also in the middle of a write. The same with a device of the kernel's multipath. The last boot of the guest
# finds the registration that the target has kept (APTPL).
# no hurry
# long: 130
# limit: 1500
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ $(id -u) == 0 ]] || skip "needs root for the guest"
reservations=${RESERVATIONS:-$(dirname "$ARDEN")/examples/reservations}
[[ -x $reservations ]] || fail "$reservations is not built: make build"
kernel=$("$ROOT/tests/downloads" kernel)
iscsi=$("$ROOT/tests/downloads" iscsi) || skip "no packages of the iSCSI initiator"
version=$(<"$kernel/version")
export GUEST_MODULES="target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod ext4 loop dm_multipath dm_round_robin crc32c_generic crc32c-intel"
for module in iscsi_target_mod target_core_file iscsi_tcp sd_mod ext4 loop dm_multipath dm_round_robin; do
  modprobe -d "$kernel" -S "$version" --show-depends "$module" >/dev/null 2>&1 || skip "this kernel has no module $module"
done
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cp -a "$iscsi" "$job/iscsi"
cp "$reservations" "$ROOT/tests/guest/scsi-target" "$job/"

note "one path fences the other"
cat >"$job/main" <<'M'
#!/bin/bash
set -e
exec 2>&1
source /job/scsi-target
mkdir -p /back; truncate -s 96m /tmp/loop
loop=$(losetup -f --show /tmp/loop); mkfs.ext4 -q "$loop"; mount -t ext4 "$loop" /back
truncate -s 64m /back/disk
target_up disk /back/disk 67108864 2
/programs/reservations refuse /tmp/loop
/programs/reservations refuse "$loop"
/programs/reservations work "$(path_of disk 1)" "$(path_of disk 2)" /back || { dmesg | tail -n 30; exit 1; }
/programs/reservations show "$(path_of disk 2)"
mkdir -p /job/kept; cp /etc/target/pr/* /var/target/pr/* /job/kept/ 2>/dev/null || ls /job/kept/*
M
chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" 850

note "a device of several paths"
[[ -x /usr/sbin/dmsetup ]] || skip "there is no dmsetup"
cat >"$job/main" <<'M'
#!/bin/bash
set -e
exec 2>&1
source /job/scsi-target
mkdir -p /back; truncate -s 96m /tmp/loop
loop=$(losetup -f --show /tmp/loop); mkfs.ext4 -q "$loop"; mount -t ext4 "$loop" /back
truncate -s 64m /back/disk
target_up disk /back/disk 67108864 3
truncate -s 64m /back/bad
target_up bad /back/bad 67108864 1
multipath_up wrong "$(path_of disk 1)" "$(path_of bad 1)"
/programs/reservations wrong "$(multipath_of wrong)"
dmsetup remove --noudevsync wrong
multipath_up disk "$(path_of disk 1)" "$(path_of disk 2)"
/programs/reservations multipath "$(multipath_of disk)" "$(path_of disk 3)" /back "$(path_of disk 2)" || { dmesg | tail -n 30; dmsetup status; exit 1; }
M
chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" 850

note "after a restart of the target"
cat >"$job/main" <<'M'
#!/bin/bash
set -e
exec 2>&1
source /job/scsi-target
cp /job/kept/* /var/target/pr/
truncate -s 64m /tmp/disk
target_up disk /tmp/disk 67108864 2
/programs/reservations persist "$(path_of disk 2)" || { dmesg | tail -n 30; exit 1; }
M
"$ROOT/tests/guest/boot" "$job" 400
