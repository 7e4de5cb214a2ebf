# The Linux kernel's client, in a guest: every dialect, sealed, several channels, buffered and direct I/O, mmap, open
# files renamed and unlinked, locks, ACLs, EAs, many files; compared after a remount, and here with the directory. With
# VOLUME=1 the shares lie on a volume, and what is compared at the end is what another client gets. MANY=10000 is the long form:
# the emulated guest needs up to 40 ms a file.
# long: 400
# limit: 1300
# Server and guest live in a network namespace of their own, with an address that is not loopback: further channels need
# one. The guest reaches it as itself.
if [[ -z ${IN_NAMESPACE:-} ]]; then
  [[ $(id -u) == 0 ]] || { echo "needs root for a network namespace and the guest"; exit 77; }
  "$(dirname "$0")/../downloads" kernel # the namespace reaches nothing outside
  space=arden-$$; trap 'ip netns del "$space"' EXIT
  ip netns add "$space"
  ip -n "$space" link set lo up
  ip -n "$space" link add inside type veth peer name outside
  for link in inside outside; do ip -n "$space" link set "$link" up; done
  ip -n "$space" addr add 10.99.0.1/24 dev inside
  status=0; IN_NAMESPACE=1 ip netns exec "$space" bash "$0" || status=$?
  exit "$status"
fi
source "$(dirname "$0")/../lib.sh"
start 0.0.0.0 # all of this namespace, nothing else
host=10.99.0.1
share=test encrypted=enc
if [[ -n ${VOLUME:-} ]]; then
  share=volume encrypted=sealed
  arden volume create v --file "$WORK/v.img" --size 8g >/dev/null
  arden share add volume --volume v >/dev/null
  arden share add sealed --volume v --encrypt >/dev/null
fi
job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cat >"$job/config.json" <<C
{"address": "10.0.2.2", "host_address": "$host", "port": $PORT, "user": "tester", "password": "pw", "share": "$share",
 "encrypted_share": "$encrypted", "versions": ["2.0", "2.1", "3.0", "3.02", "3.1.1"], "many": ${MANY:-1500}, "only": ${ONLY:-[]}}
C
cp "$ROOT/tests/guest/client.py" "$job/"
printf '#!/bin/sh\nexec python3 -S /job/client.py\n' >"$job/main"; chmod +x "$job/main"
status=0; "$ROOT/tests/guest/boot" "$job" 1200 || status=$?
note "what lies in the share"
if [[ -n ${VOLUME:-} ]]; then
  DIR=$WORK/found; mkdir "$DIR"
  SHARE=volume client -c "lcd $DIR; prompt off; recurse on; mget *" >"$WORK/mget.log" 2>&1 || status=1
fi
python3 - "$DIR" "$job/manifest.json" <<'P' || status=1
import hashlib, json, os, sys
wrong = []
manifest = json.load(open(sys.argv[2]))
for path, want in manifest.items():
    try:
        got = hashlib.sha256(open(os.path.join(sys.argv[1], path), "rb").read()).hexdigest()
    except OSError as e:
        got = str(e)
    if got != want:
        wrong.append(path)
print(f"{len(manifest)} files compared, {len(wrong)} differ {wrong[:5]}")
sys.exit(bool(wrong))
P
exit "$status"
