# The vendor's conformance suites, the cases of build verification (about a minute), and its failover suite over three nodes of which one is killed
# (another), where WPTS names the script that runs them.
# limit: 900
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "starts Arden alone"
[[ -n ${WPTS:-} ]] || skip "WPTS names no script that runs the suites"
[[ $EUID == 0 ]] || skip "port 445 takes root"
python3 -B "$ROOT/tests/wpts/run" --wpts "$WPTS" --arden "$ARDEN" --filter TestCategory=Bvt
if [[ -x /usr/bin/etcd ]]; then
  python3 -B "$ROOT/tests/wpts/failover" --wpts "$WPTS" --arden "$ARDEN" --how kill --only-failovers
else
  echo "there is no etcd: the failover suite is not run"
fi
