# The vendor's conformance suites, the cases of build verification (about a minute), where WPTS names the script that runs them.
# limit: 900
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "starts Arden alone"
[[ -n ${WPTS:-} ]] || skip "WPTS names no script that runs the suites"
[[ $EUID == 0 ]] || skip "port 445 takes root"
python3 -B "$ROOT/tests/wpts/run" --wpts "$WPTS" --arden "$ARDEN" --filter TestCategory=Bvt
