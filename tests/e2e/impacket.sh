# impacket, an independent client in Python whose RPC speaks to the named pipes as an administrator's tools do.
source "$(dirname "$0")/../lib.sh"
[[ $SERVER == arden ]] || skip "what an administrator may ask is Arden's"
start
arden user add boss --password pw --group Administrators >/dev/null
python_client "$ROOT/tests/e2e/impacket-client.py" "$ADDR" "$PORT" "$DIR"
