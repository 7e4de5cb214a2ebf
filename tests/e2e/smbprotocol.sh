# smbprotocol, an independent client in Python.
source "$(dirname "$0")/../lib.sh"
start
python_client "$ROOT/tests/e2e/python-client.py" "$ADDR" "$PORT" tester pw "$DIR"
