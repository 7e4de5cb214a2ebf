"""Has a file open and says so, then whether it is lost: hold-client.py PORT SHARE PATH read|shared

read: opens it for itself alone, makes it where there is none, and reads it again and again until that fails.
shared: opens what is there for reading beside other readers, and keeps it for a minute."""
import sys, time, uuid
from smbprotocol.connection import Connection
from smbprotocol.open import CreateDisposition, CreateOptions, FilePipePrinterAccessMask, ImpersonationLevel, Open, ShareAccess
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

port, share, path, how = sys.argv[1:]
connection = Connection(uuid.uuid4(), "127.0.0.1", int(port), True)
connection.connect()
session = Session(connection, "tester", "pw", require_encryption=False)
session.connect()
tree = TreeConnect(session, rf"\\127.0.0.1\{share}")
tree.connect()
held = Open(tree, path)
if how == "shared":
    held.create(ImpersonationLevel.Impersonation, FilePipePrinterAccessMask.GENERIC_READ, 0, ShareAccess.FILE_SHARE_READ,
                CreateDisposition.FILE_OPEN, CreateOptions.FILE_NON_DIRECTORY_FILE)
    print("open", flush=True)
    time.sleep(60)
else:
    held.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 0, CreateDisposition.FILE_OPEN_IF, 0)
    held.write(b"held", 0)
    print("open", flush=True)
    try:
        while True:
            held.read(0, 4)
            time.sleep(0.05)
    except Exception as e:
        print(f"lost {type(e).__name__}", flush=True)
