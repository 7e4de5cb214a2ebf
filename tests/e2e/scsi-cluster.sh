# Two nodes of a cluster with the fence `scsi`, in a guest with the kernel's own SCSI target: a pool on two disks, which each node
# reaches by paths of its own: one of them by two, as a device of the kernel's multipath, of which one is lost and comes back. The owner's key is taken away under it, it is stopped in mid-write, hands over; and a disk that is not reached is not passed over.
# two at once: 170
# limit: 900
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ $(id -u) == 0 ]] || skip "needs root for the guest"
for program in bin/etcd bin/etcdctl bin/smbclient sbin/dmsetup; do [[ -x /usr/$program ]] || skip "there is no $program"; done
reservations=${RESERVATIONS:-$(dirname "$ARDEN")/examples/reservations}
[[ -x $reservations ]] || fail "$reservations is not built: make build"
kernel=$("$ROOT/tests/downloads" kernel)
iscsi=$("$ROOT/tests/downloads" iscsi) || skip "no packages of the iSCSI initiator"
version=$(<"$kernel/version")
export GUEST_MODULES="target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod dm_multipath dm_round_robin crc32c_generic crc32c-intel" MEMORY=1280
for module in iscsi_target_mod target_core_file iscsi_tcp sd_mod dm_multipath dm_round_robin; do
  modprobe -d "$kernel" -S "$version" --show-depends "$module" >/dev/null 2>&1 || skip "this kernel has no module $module"
done
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cp -a "$iscsi" "$job/iscsi"
cp "$reservations" "$ARDEN" "$ROOT/tests/guest/scsi-target" "$ROOT/tests/guest/scsi-cluster" "$ROOT/tests/guest/fenced-cluster" "$job/"
printf '#!/bin/bash\nexec bash /job/scsi-cluster 2>&1\n' >"$job/main"; chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" 860
