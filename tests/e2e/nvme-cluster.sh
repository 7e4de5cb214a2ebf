# Two nodes of a cluster with the fence `nvme`, in a guest with the kernel's own NVMe target: a pool on two namespaces, which each node
# reaches over TCP as a host of its own. The owner's key is taken away under it, it is stopped in mid-write, hands over; and a node with the owner's host identifier is kept out.
# two at once: 130
# limit: 900
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "needs Arden"
[[ $(id -u) == 0 ]] || skip "needs root for the guest"
for program in etcd etcdctl smbclient; do [[ -x /usr/bin/$program ]] || skip "there is no $program"; done
reservations=${RESERVATIONS:-$(dirname "$ARDEN")/examples/reservations}
[[ -x $reservations ]] || fail "$reservations is not built: make build"
KERNEL=$("$ROOT/tests/downloads" kernel-new) || skip "no packages of a kernel whose NVMe target has reservations (Linux 6.13)"
version=$(<"$KERNEL/version")
export KERNEL GUEST_MODULES="nvmet-tcp nvme-tcp loop" MODULE_OPTIONS="nvme-core multipath=N" MEMORY=1536
for module in nvmet-tcp nvme-tcp loop; do
  modprobe -d "$KERNEL" -S "$version" --show-depends "$module" >/dev/null 2>&1 || skip "the kernel $version has no module $module"
done
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cp "$reservations" "$ARDEN" "$ROOT/tests/guest/nvme-target" "$ROOT/tests/guest/nvme-cluster" "$ROOT/tests/guest/fenced-cluster" "$job/"
printf '#!/bin/bash\nexec bash /job/nvme-cluster 2>&1\n' >"$job/main"; chmod +x "$job/main"
"$ROOT/tests/guest/boot" "$job" 860
