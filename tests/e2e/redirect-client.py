"""A client that asks to be redirected to the owner of a share, [MS-SMB2] 3.2.4.2.4 and 3.2.5.5, with smbprotocol.
  redirect-client.py HOST PORT SHARE    connects, goes where it is told to, writes a file there, and reads it at the first node
Prints `redirected ADDRESS...` or `served here`, and the share's capabilities."""
import sys, uuid, weakref

import smbprotocol.tree as tree
from smbprotocol.connection import Connection
from smbprotocol.exceptions import ErrorContextId, SMBResponseException
from smbprotocol.open import CreateDisposition, CreateOptions, FilePipePrinterAccessMask, ImpersonationLevel, Open, ShareAccess
from smbprotocol.session import Session
from smbprotocol.structure import IntField
from smbprotocol.tree import SMB2TreeConnectResponse, TreeConnect

HOST, PORT, SHARE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
REDIRECT_TO_OWNER = 2
# The library has its bytes in the other order.
ErrorContextId.SMB2_ERROR_ID_SHARE_REDIRECT = 0x72645253
plain_request, plain_response, capabilities = tree.SMB2TreeConnectRequest, tree.SMB2TreeConnectResponse, []


class Request(plain_request):
    redirects = True

    def __init__(self):
        super().__init__()
        flags = IntField(size=2)
        flags.name, flags.structure = "flags", weakref.proxy(self)
        flags.set_value(REDIRECT_TO_OWNER if Request.redirects else 0)
        self.fields["flags"] = flags


class Response(plain_response):
    def unpack(self, data):
        super().unpack(data)
        capabilities.append(int.from_bytes(data[8:12], "little"))


tree.SMB2TreeConnectRequest, tree.SMB2TreeConnectResponse = Request, Response


def session(host):
    connection = Connection(uuid.uuid4(), host, PORT, True)
    connection.connect(timeout=10)
    s = Session(connection, "tester", "pw", require_encryption=False)
    s.connect()
    return s


def open_file(connected, disposition):
    f = Open(connected, "redirected")
    f.create(ImpersonationLevel.Impersonation, FilePipePrinterAccessMask.GENERIC_READ | FilePipePrinterAccessMask.GENERIC_WRITE,
             0, ShareAccess.FILE_SHARE_READ | ShareAccess.FILE_SHARE_WRITE, disposition, CreateOptions.FILE_NON_DIRECTORY_FILE)
    return f


first = session(HOST)
connected = TreeConnect(first, rf"\\{HOST}\{SHARE}")
try:
    connected.connect()
    print("served here")
except SMBResponseException as e:
    details = e.error_details
    addresses = [a.get_ipaddress() for a in details[0]["ip_addr_move_list"].get_value()]
    print("redirected", *addresses)
    connected = TreeConnect(session(addresses[0]), rf"\\{addresses[0]}\{SHARE}")
    connected.connect()
print(f"capabilities {capabilities[-1]:#x}")
content = uuid.uuid4().bytes
f = open_file(connected, CreateDisposition.FILE_OVERWRITE_IF)
f.write(content, 0)
f.close()
# Who does not ask is served by the first node as well.
Request.redirects = False
plain = TreeConnect(first, rf"\\{HOST}\{SHARE}")
plain.connect()
f = open_file(plain, CreateDisposition.FILE_OPEN)
assert f.read(0, 16) == content, "the nodes have different content"
f.close()
