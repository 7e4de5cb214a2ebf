"""Writes to a file again and again, and says what the first refusal is: ADDR PORT SHARE USER"""
import sys, time, uuid

from smbprotocol.connection import Connection
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.open import CreateDisposition, ImpersonationLevel, Open
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

addr, port, share, user = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
connection = Connection(uuid.uuid4(), addr, port, True)
connection.connect()
session = Session(connection, user, "pw", require_encryption=False)
session.connect()
tree = TreeConnect(session, f"\\\\{addr}\\{share}")
tree.connect()
file = Open(tree, f"of-{user}")
file.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, CreateDisposition.FILE_OPEN_IF, 0)
print("writes", flush=True)
for n in range(600):
    try:
        file.write(b"x", n)
    except SMBResponseException as e:
        print(f"refused {e.status:#x}", flush=True)
        break
    except Exception as e:
        print(f"lost {type(e).__name__}", flush=True)
        break
    time.sleep(0.02)
else:
    print("nobody stopped it", flush=True)
