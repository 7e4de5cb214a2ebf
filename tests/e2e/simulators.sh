# Fixed seeds in which each simulated fault has to happen; then every kind of simulated run for half a minute, with seeds that nobody ran
# before: two kinds at a time, at a low priority.
# long: 130
# limit: 900
root=$(realpath "$(dirname "$0")/../.."); sim=$root/target/release/arden-sim
[[ ${SERVER:-arden} == arden ]] || { echo "the simulators run Arden's code"; exit 77; }
[[ -x $sim ]] || { echo "$sim is not there: make build"; exit 1; }
first=$(($(date +%s) * 1000)) seconds=${ARDEN_SIM_SECONDS:-30}

run_kind() {
  local said=$WORK/said${1:-.space} status=0
  nice -n 15 "$sim" $1 --start "$first" --seeds 1000000 --seconds "$seconds" >"$said" 2>&1 || status=$?
  # A failure is told with the command that runs it again.
  echo "arden-sim $1: from seed $first on: $(if ((status)); then cat "$said"; else grep -o '^[0-9]* seeds in [^:]*: [0-9]* operations, [0-9]* crashes' "$said"; fi)"
  ((status == 0)) || { echo "FAILED arden-sim $1"; touch "$WORK/failed"; }
}

every_fault() { nice -n 15 "$sim" --every-fault || touch "$WORK/failed"; }

every_fault &
for kind in "" --pool --volume --concurrent --server --identity --cluster; do
  while (($(jobs -rp | wc -l) >= 2)); do wait -n; done
  run_kind "$kind" &
done
wait
[[ ! -e $WORK/failed ]]
