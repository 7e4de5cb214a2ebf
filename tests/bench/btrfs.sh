#!/bin/bash
# btrfs over loop devices, for comparison.
#   btrfs.sh start PROFILE MOUNT FILE...   data in PROFILE (raid1, raid5), metadata in raid1
#   btrfs.sh stop MOUNT
#   btrfs.sh check                         says whether this machine can
set -euo pipefail
case $1 in
  check)
    [[ $(id -u) == 0 ]] || { echo "loop devices need root" >&2; exit 1; }
    grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null || { echo "the kernel has no btrfs" >&2; exit 1; }
    command -v mkfs.btrfs >/dev/null || { echo "mkfs.btrfs is not installed" >&2; exit 1; }
    losetup -f >/dev/null || { echo "no loop devices" >&2; exit 1; } ;;
  start)
    profile=$2 mount=$3; shift 3
    mkdir -p "$mount"; : >"$mount.loops"; loops=()
    for file; do
      loop=$(losetup --find --show --direct-io=on "$file"); loops+=("$loop"); echo "$loop" >>"$mount.loops"
    done
    mkfs.btrfs -q -f -d "$profile" -m raid1 "${loops[@]}" >/dev/null
    # The kernel finds the other members only among devices that were scanned.
    btrfs device scan "${loops[@]}" >/dev/null
    mount -t btrfs "${loops[0]}" "$mount" ;;
  stop)
    mount=$2
    mountpoint -q "$mount" && umount "$mount"
    while read -r loop; do losetup -d "$loop" || true; done <"$mount.loops"
    rm -f "$mount.loops"; rmdir "$mount" ;;
esac
