# Networks that fail. A client that loses its network without a word: what it holds alone is free for others soon after. A link of 70 kB/s: the
# largest read and the largest write get through. A client that reads none of its answers, and one that stops in the middle of a request, lose
# their connection, and nobody waits for them.
# long: 140
# limit: 600
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "the times are Arden's"
if [[ -z ${IN_NAMESPACE:-} ]]; then
  (($(id -u) == 0)) || skip "needs root"
  export IN_NAMESPACE=arden-$$
  # Clients of which a shell was told to end go on otherwise.
  trap 'status=$?; for n in "" -far; do ip netns pids "$IN_NAMESPACE$n" 2>/dev/null | xargs -r kill -9 2>/dev/null || true; ip netns del "$IN_NAMESPACE$n" 2>/dev/null || true; done; on_exit "$status"' EXIT
  for n in "" -far; do ip netns add "$IN_NAMESPACE$n" || skip "no network namespaces"; ip -n "$IN_NAMESPACE$n" link set lo up; done
  ip link add near netns "$IN_NAMESPACE" type veth peer name far netns "$IN_NAMESPACE-far" || skip "no veth interfaces"
  ip -n "$IN_NAMESPACE" addr add 10.0.0.1/24 dev near; ip -n "$IN_NAMESPACE" link set near up
  ip -n "$IN_NAMESPACE-far" addr add 10.0.0.2/24 dev far; ip -n "$IN_NAMESPACE-far" link set far up
  status=0; WORK=$WORK ip netns exec "$IN_NAMESPACE" bash "$0" || status=$?
  exit "$status"
fi
far() { ip netns exec "$IN_NAMESPACE-far" "$@"; }
# What a client that is gone is noticed after (docs/security.md), and a busy machine.
readonly GONE=100 BUSY=30
network() { python_client "$ROOT/tests/e2e/network-client.py" "$@"; }
start 0.0.0.0
head -c 9000000 /dev/urandom >"$DIR/big"; chmod 666 "$DIR/big"
pids=()
trap 'status=$?; kill "${pids[@]}" 2>/dev/null || true; on_exit "$status"' EXIT

note "a client loses its network while it holds files and ranges"
far bash -c "$(declare -f python_client); ROOT=$ROOT; python_client '$ROOT/tests/e2e/network-client.py' 10.0.0.1 '$PORT' hold" >"$WORK/hold" 2>&1 & pids+=($!)
until_true 30 grep -q held "$WORK/hold" || { cat "$WORK/hold"; fail "nothing is held"; }
ip link set near down
network 127.0.0.1 "$PORT" want $((GONE + BUSY)) >"$WORK/want" 2>&1 & want=$!; pids+=("$want")

note "a slow link, and clients that stall"
slow_down=$(free_port); slow_up=$(free_port)
for p in "$slow_down down" "$slow_up up"; do python3 "$ROOT/tests/e2e/slow-proxy.py" ${p% *} "$PORT" "${p#* }" 70000 >>"$WORK/proxy.log" 2>&1 & pids+=($!); done
until_true 10 bash -c "</dev/tcp/127.0.0.1/$slow_down" && until_true 10 bash -c "</dev/tcp/127.0.0.1/$slow_up" || fail "no proxy"
network 127.0.0.1 "$slow_down" read >"$WORK/read" 2>&1 & reads=$!
network 127.0.0.1 "$slow_up" write >"$WORK/write" 2>&1 & writes=$!
pids+=("$reads" "$writes")
truncate -s 32M "$DIR/unread"; chmod 666 "$DIR/unread"
has_open() { arden open list --json | grep -q "\"$1\""; }
has_none() { ! has_open "$1"; }
for how in unread half; do
  network 127.0.0.1 "$PORT" "$how" >"$WORK/$how" 2>&1 & pids+=($!)
  until_true 30 grep -q begun "$WORK/$how" || { cat "$WORK/$how"; fail "$how does not get going"; }
  has_open "$how" || { arden open list --json; fail "$how has nothing open"; }
done
for i in 1 2 3 4 5 6 7 8; do
  began=$(date +%s%N); client -c 'ls' >/dev/null || fail "another client is not served"
  (($(date +%s%N) - began < 5000000000)) || fail "another client waits $((($(date +%s%N) - began) / 1000000)) ms for its answers"
done
for how in unread half; do until_true 100 has_none "$how" || fail "$how: the connection of a client that stalls stays"; echo "$how: ended, $SECONDS s after the start"; done
status=0
for what in want reads writes; do wait "${!what}" || { status=1; echo "FAILED: $what" >&2; }; done
tail -n 5 "$WORK"/{want,read,write}
((status == 0)) || fail "clients of bad networks"
# What others closed is closed, and so is what those had open that are gone.
none_left() { [[ $(arden open list --json | tr -d ' \n') == '[]' ]]; }
until_true 20 none_left || { arden open list; fail "opens are left"; }
