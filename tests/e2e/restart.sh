# Transparent restart: the Linux kernel's client (mount option persistenthandles) and smbprotocol, each with open files,
# writes and locks on a continuously available share, while the daemon is killed with -9 or told to stop, and started
# again, RESTARTS times. No error reaches a program, every acknowledged byte and lock is there. RESTARTS=50 is the long
# form; with VOLUME=1 the share lies on a volume, else on a directory.
# long: 43
# limit: 900
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "kills Arden"
restarts=${RESTARTS:-6}
start
mkdir -p "$WORK/ca"; chmod 777 "$WORK/ca"
if [[ -n ${VOLUME:-} ]]; then
  arden volume create v --file "$WORK/volume" --size 2g >/dev/null
  arden share add ca --volume v --ca >/dev/null
else
  arden share add ca --dir "$WORK/ca" --ca >/dev/null
fi
says '"continuously_available": true' arden share list --json || fail "the share does not say that it is continuously available"

job=$WORK/job; mkdir -p "$job"; chmod 777 "$job"
cat >"$job/config.json" <<C
{"address": "10.0.2.2", "port": $PORT, "user": "tester", "password": "pw", "share": "ca"}
C
cp "$ROOT/tests/guest/restart.py" "$job/"
printf '#!/bin/sh\nexec python3 -S /job/restart.py\n' >"$job/main"; chmod +x "$job/main"
guest=
if [[ -z ${NO_GUEST:-} ]]; then
  "$ROOT/tests/guest/boot" "$job" 850 >"$WORK/guest.log" 2>&1 &
  guest=$!
  until_true 180 test -e "$job/ready" || { cat "$WORK/guest.log"; fail "the guest does not get going"; }
  # Another client's opens take write caching from half of the files: their locks and writes come to the server at once.
  python_client "$ROOT/tests/e2e/restart-client.py" share "$ADDR" "$PORT" "$WORK/restart"
  python_client "$ROOT/tests/e2e/restart-client.py" refused "$ADDR" "$PORT" "$WORK/restart" 2
fi
python_client "$ROOT/tests/e2e/restart-client.py" work "$ADDR" "$PORT" "$WORK/restart" >"$WORK/python.log" 2>&1 &
worker=$!
until_true 30 test -s "$WORK/restart.acked" || { cat "$WORK/python.log"; fail "smbprotocol does not get going"; }
for round in $(seq "$restarts"); do
  sleep "0.$((RANDOM % 70 + 25))"
  # Every third time by the book.
  if ((round % 3)); then kill_hard; else stop; fi
  launch
  until_true 20 bash -c "[ \$(wc -l <'$WORK/restart.acked') -gt $(($(wc -l <"$WORK/restart.acked") + 10)) ]" ||
    { tail -n 20 "$WORK/python.log"; fail "smbprotocol does not go on after restart $round"; }
  kill -0 "$worker" || { cat "$WORK/python.log"; fail "smbprotocol ended in round $round"; }
  if [[ -n $guest ]]; then
    until_true 60 bash -c "! kill -0 $guest || [ \$(cat '$job/progress') -gt $(cat "$job/progress" 2>/dev/null || echo 0) ]" ||
      { cat "$WORK/guest.log"; fail "the guest does not go on after restart $round"; }
    kill -0 "$guest" || { cat "$WORK/guest.log"; fail "the guest ended in round $round"; }
  fi
  echo "restart $round: $(wc -l <"$WORK/restart.acked") acknowledgements, round $(cat "$job/progress" 2>/dev/null || echo -) of the guest"
done
# And one more.
stop; launch
touch "$WORK/restart.stop"
wait "$worker" || { cat "$WORK/python.log"; fail "smbprotocol: $(tail -n 1 "$WORK/python.log")"; }
tail -n 1 "$WORK/python.log"
if [[ -n $guest ]]; then
  before=$(cat "$job/progress" 2>/dev/null || echo 0)
  until_true 60 bash -c "[ \$(cat '$job/progress') -gt $((before + 3)) ]" || { cat "$WORK/guest.log"; fail "the guest does not go on"; }
  # Its locks are still there, those that it only kept in its cache too.
  python_client "$ROOT/tests/e2e/restart-client.py" refused "$ADDR" "$PORT" "$WORK/restart" 4
  touch "$job/stop"
  status=0; wait "$guest" || status=$?
  cat "$WORK/guest.log"
  [[ $status == 0 ]] || fail "a program in the guest met an error"
fi
# What was closed is closed: nothing is held for anybody any more.
says '^\[\]$' bash -c "'$ARDEN' --state '$STATE' open list --json | tr -d ' \n'; echo" || fail "handles were left behind"
[[ -z ${VOLUME:-} ]] || SHARE=ca client -c "lcd $WORK/ca; prompt off; mget *" >/dev/null 2>&1
python_client "$ROOT/tests/e2e/restart-client.py" verify "$ADDR" "$PORT" "$WORK/restart" "$WORK/ca" "$job/acked.json"
reclaimed=$(sed 's/\x1b\[[0-9;]*m//g' "$WORK/server.log" | grep -c 'durable handle reclaimed.*persistent=true')
echo "$restarts restarts, $reclaimed persistent handles reclaimed"
handles=6; [[ -z $guest ]] || handles=10
((reclaimed >= restarts * handles)) || fail "handles were not reclaimed but opened again"
