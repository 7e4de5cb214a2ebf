"""Clients of networks that fail: network-client.py ADDR PORT MODE [SECONDS]

hold: opens a file for itself alone and locks a range of another one, says so, and waits for its end.
want: tries to have both, for SECONDS, and says after how long it did.
read, write: the largest request that the server takes, over whatever the network is.
unread: opens a file, asks for far more of it than it reads, and stays.
half: opens a file, sends the first half of a request, and stays."""
import struct, sys, time, uuid

from smbprotocol.connection import Connection, SMB2Echo
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.open import CreateDisposition, ImpersonationLevel, Open, SMB2LockElement, SMB2LockRequest, SMB2ReadRequest
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

host, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 0
READS = 24
EXCLUSIVE_NOW, SHARING_VIOLATION, LOCK_NOT_GRANTED = 0x12, 0xC0000043, 0xC0000055
connection = Connection(uuid.uuid4(), host, port, True)
connection.connect(timeout=30)
session = Session(connection, "tester", "pw", require_encryption=False)
session.connect()
tree = TreeConnect(session, rf"\\{host}\test")
tree.connect()


def opened(name, sharing):
    o = Open(tree, name)
    o.create(ImpersonationLevel.Impersonation, 0x12019F, 0, sharing, CreateDisposition.FILE_OPEN_IF, 0)
    return o


def lock(o):
    element = SMB2LockElement()
    element["offset"], element["length"], element["flags"] = 0, 10, EXCLUSIVE_NOW
    request = SMB2LockRequest()
    request["file_id"], request["locks"] = o.file_id, [element]
    connection.receive(connection.send(request, session.session_id, tree.tree_connect_id))


def credits(wanted):
    while connection.sequence_window["high"] - connection.sequence_window["low"] < wanted:
        connection.receive(connection.send(SMB2Echo(), sid=session.session_id, credit_request=wanted))


def main_hold():
    keep = [opened("alone", 0), opened("locked", 7)]
    lock(keep[1])
    print("held", flush=True)
    time.sleep(1000)


def main_want():
    began, missing = time.time(), {"alone", "locked"}
    while missing and time.time() - began < seconds:
        for name in list(missing):
            try:
                o = opened(name, 7)
                if name == "locked":
                    lock(o)
                print(f"{name}: free after {time.time() - began:.0f} s", flush=True)
                missing.remove(name)
            except SMBResponseException as e:
                assert e.status in (SHARING_VIOLATION, LOCK_NOT_GRANTED), hex(e.status)
        time.sleep(1)
    if missing:
        sys.exit(f"after {seconds:.0f} s a client that is gone still holds {missing}")


def main_transfer():
    o, most = opened("big" if mode == "read" else "written", 7), getattr(connection, f"max_{mode}_size")
    credits(most // 65536 + 2)
    began = time.time()
    count = len(o.read(0, most)) if mode == "read" else o.write(bytes(most), 0)
    print(f"{mode}: {count} bytes in {time.time() - began:.0f} s")
    assert count == most


def main_unread():
    o = opened("unread", 7)
    credits(READS * 17)
    # The library's thread reads one more answer and no other.
    connection.transport.recv = lambda timeout: time.sleep(1000)
    for _ in range(READS):
        request = SMB2ReadRequest()
        request["length"], request["offset"], request["file_id"] = 1 << 20, 0, o.file_id
        connection.send(request, session.session_id, tree.tree_connect_id, credit_request=0)
    print("begun", flush=True)
    time.sleep(1000)


def main_half():
    opened("half", 7)
    connection.transport._sock.sendall(struct.pack(">I", 4000) + b"\xfeSMB" + bytes(1000))
    print("begun", flush=True)
    time.sleep(1000)


{"hold": main_hold, "want": main_want, "read": main_transfer, "write": main_transfer, "unread": main_unread, "half": main_half}[mode]()
