"""A client with durable handles that are not persistent, of which one has a batch oplock and one a lease, over a planned move of their
files: durable-client.py PORT SHARE PREFIX FROM TO

It opens, writes and locks at FROM and makes PREFIX.open. When PREFIX.moved is there, it takes both up at TO and finds them as they were."""
import os, sys, time, uuid

from smbprotocol.connection import Connection
from smbprotocol.create_contexts import (
    CreateContextName, LeaseState, SMB2CreateContextRequest, SMB2CreateDurableHandleReconnect, SMB2CreateDurableHandleReconnectV2,
    SMB2CreateDurableHandleRequest, SMB2CreateDurableHandleRequestV2, SMB2CreateRequestLeaseV2)
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.open import CreateDisposition, ImpersonationLevel, Open, RequestedOplockLevel, SMB2LockElement, SMB2LockRequest
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

port, share, prefix, here, there = sys.argv[1:]
EXCLUSIVE_NOW, LOCK_NOT_GRANTED = 0x12, 0xC0000055
client, guid, key = uuid.uuid4(), uuid.uuid4(), uuid.uuid4().bytes


def connect(host):
    connection = Connection(client, host, int(port), True)
    connection.connect(timeout=5)
    session = Session(connection, "tester", "pw", require_encryption=False)
    session.connect()
    tree = TreeConnect(session, rf"\\{host}\{share}")
    tree.connect()
    return tree


def context(structure, name):
    c = SMB2CreateContextRequest()
    c["buffer_name"], c["buffer_data"] = name, structure
    return c


def lease():
    s = SMB2CreateRequestLeaseV2()
    s["lease_key"], s["parent_lease_key"], s["epoch"] = key, bytes(16), bytes(2)
    s["lease_state"] = (LeaseState.SMB2_LEASE_READ_CACHING | LeaseState.SMB2_LEASE_HANDLE_CACHING
                        | LeaseState.SMB2_LEASE_WRITE_CACHING)
    return context(s, CreateContextName.SMB2_CREATE_REQUEST_LEASE_V2)


def opened(tree, name, level, contexts):
    o = Open(tree, name)
    answers = o.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 0, CreateDisposition.FILE_OPEN_IF, 0, contexts, level)
    return o, [type(a).__name__ for a in answers or []]


def lock(o, offset):
    element = SMB2LockElement()
    element["offset"], element["length"], element["flags"] = offset, 10, EXCLUSIVE_NOW
    request = SMB2LockRequest()
    request["file_id"], request["locks"] = o.file_id, [element]
    sent = o.connection.send(request, o.tree_connect.session.session_id, o.tree_connect.tree_connect_id)
    o.connection.receive(sent)


BATCH, LEASE = RequestedOplockLevel.SMB2_OPLOCK_LEVEL_BATCH, RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE
tree = connect(here)
first = context(SMB2CreateDurableHandleRequest(), CreateContextName.SMB2_CREATE_DURABLE_HANDLE_REQUEST)
batch, answers = opened(tree, "batch", BATCH, [first])
assert "SMB2CreateDurableHandleResponse" in answers, f"not durable: {answers}"
second = SMB2CreateDurableHandleRequestV2()
second["timeout"], second["create_guid"] = 60_000, guid
second = context(second, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2)
leased, answers = opened(tree, "leased", LEASE, [second, lease()])
assert "SMB2CreateDurableHandleResponseV2" in answers, f"not durable: {answers}"
ids = [o.file_id for o in (batch, leased)]
for o in (batch, leased):
    o.write(b"before the move", 0)
    lock(o, 100)
open(prefix + ".open", "w").close()
end = time.time() + 60
while not os.path.exists(prefix + ".moved"):
    assert time.time() < end, "nothing is moved"
    time.sleep(0.05)
tree = connect(there)
again = SMB2CreateDurableHandleReconnect()
again["data"] = ids[0]
batch, _ = opened(tree, "batch", BATCH, [context(again, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_RECONNECT)])
again = SMB2CreateDurableHandleReconnectV2()
again["file_id"], again["create_guid"] = ids[1], guid
again = context(again, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2)
leased, _ = opened(tree, "leased", LEASE, [again, lease()])
for before, o in zip(ids, (batch, leased)):
    assert o.file_id == before, f"another FileId: {o.file_id} and not {before}"
    assert o.read(0, 15) == b"before the move"
    try:
        lock(o, 105)
        raise AssertionError("the lock is not held")
    except SMBResponseException as e:
        assert e.status == LOCK_NOT_GRANTED, hex(e.status)
    o.write(b"after", 0)
    o.close()
print("durable handles went along")
