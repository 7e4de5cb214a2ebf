# smbtorture: every smb2 suite against tests/smbtorture/expected-failures.txt, and beside what Samba 4.17 reaches.
# SUITES="smb2.lock smb2.lease" runs only those; with CA=1 the shares are continuously available; with VOLUME=1 each
# worker's share is a volume. NEWER=1: the tests that smbtorture 4.22 has beyond those of 4.17 (NEWER=all: all of its tests).
# long: 181
# limit: 1500
source "$(dirname "$0")/../lib.sh"
here=$ROOT/tests/smbtorture
shares=(); for i in 2 3 4; do mkdir -p "$WORK/t$i"; chmod 777 "$WORK/t$i"; shares+=(t$i="$WORK/t$i"); done
start 127.0.0.1 "${shares[@]}"
options=(--expected "$here/expected-failures.txt"); [[ -z ${IPTABLES:-} ]] || options+=(--iptables)
if [[ -n ${NEWER:-} ]]; then
  newer=$("$ROOT/tests/downloads" smbtorture) || skip "no packages of a newer smbtorture"
  options+=(--smbtorture "$newer/smbtorture" --expected "$here/expected-failures-4.22.txt")
  [[ $NEWER == all ]] || options+=(--than smbtorture)
else
  options+=(--compare "$here/samba-4.17.txt")
fi
if [[ $SERVER == arden ]]; then
  for pair in "${shares[@]}"; do arden share add "${pair%%=*}" --dir "${pair#*=}" ${CA:+--ca} >/dev/null; done
  [[ -z ${CA:-} ]] || arden share set test --ca >/dev/null
  # The suite is made for an administrator, and asks for this name.
  arden group member add Administrators tester >/dev/null
  mkdir "$WORK/hideunread"; chmod 777 "$WORK/hideunread"
  arden share add hideunread --dir "$WORK/hideunread" --access-based-enumeration >/dev/null
fi
pairs=(test="$DIR" "${shares[@]}") kind=${CA:+-ca}${VOLUME:+-volume}${NEWER:+-newer}
if [[ -n ${VOLUME:-} ]]; then
  pairs=()
  for v in v1 v2 v3 v4; do
    arden volume create "$v" --file "$WORK/$v.img" --size 4g >/dev/null
    arden share add "$v" --volume "$v" ${CA:+--ca} >/dev/null
    mkdir "$WORK/nothing-$v"; pairs+=("$v=$WORK/nothing-$v")
  done
fi
for suite in ${SUITES:-}; do options+=(--suite "$suite"); done
python3 "$here/run.py" --port "$PORT" --user tester --password pw "${pairs[@]/#/--share=}" \
  --logs "$ROOT/target/e2e/smbtorture$kind" \
  --results "$ROOT/target/e2e/smbtorture$kind.results" "${options[@]}"
