"""smbprotocol, an independent client in Python, against a server: leases, durable handles, locks, notification,
streams, EAs, security descriptors, compounds, sparse files, multi-credit I/O.   ADDR PORT USER PASSWORD"""
import hashlib, os, random, sys, threading, time, uuid

import smbclient, smbclient.path, smbclient.shutil
from checks import check, finish
from smbprotocol.connection import Connection, Dialects, Ciphers, SigningAlgorithms
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect
from smbprotocol.open import (
    Open, CreateDisposition, CreateOptions, DirectoryAccessMask, FileAttributes, FilePipePrinterAccessMask as Access,
    ImpersonationLevel, RequestedOplockLevel, ShareAccess, SMB2LockElement, SMB2LockRequest)
from smbprotocol.change_notify import ChangeNotifyFlags, CompletionFilter, FileSystemWatcher
from smbprotocol.exceptions import SMBResponseException, SMBOSError
from smbprotocol.create_contexts import (
    CreateContextName, LeaseState, SMB2CreateContextRequest, SMB2CreateDurableHandleReconnectV2,
    SMB2CreateDurableHandleRequestV2, SMB2CreateRequestLeaseV2)

ADDR, PORT, USER, PASSWORD = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
SHARE = f"\\\\{ADDR}\\test"



class Client:
    def __init__(self, dialect=None, encrypt=False, share=SHARE, **connection):
        self.connection = Connection(uuid.uuid4(), ADDR, PORT, True)
        self.connection.connect(dialect, **connection)
        self.session = Session(self.connection, USER, PASSWORD, require_encryption=encrypt)
        self.session.connect()
        self.tree = TreeConnect(self.session, share)
        self.tree.connect()

    def open(self, path, disposition=CreateDisposition.FILE_OPEN_IF, access=0x1F01FF, options=0, share=7, **more):
        o = Open(self.tree, path)
        o.create(ImpersonationLevel.Impersonation, access, more.pop("attributes", 0), share, disposition, options, **more)
        return o

    def close(self):
        self.connection.disconnect(True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except Exception:
            pass


def refused(status, f, *args, **kw):
    try:
        f(*args, **kw)
    except SMBResponseException as e:
        assert e.status == status, f"{e.status:#x}, not {status:#x}"
        return
    raise AssertionError("it was not refused")


for d in ("SMB_2_0_2", "SMB_2_1_0", "SMB_3_0_0", "SMB_3_0_2", "SMB_3_1_1"):
    @check(f"data, {d}")
    def _(d=d):
        for encrypt in (False, True):
            if encrypt and d.startswith("SMB_2"):
                continue
            with Client(getattr(Dialects, d), encrypt) as c:
                content = random.Random(d).randbytes(1_500_000)
                limit = min(c.connection.max_write_size, c.connection.max_read_size, 1 << 20)
                f = c.open(f"data-{d}-{encrypt}")
                for at in range(0, len(content), limit):
                    f.write(content[at:at + limit], at)
                f.flush()
                f.close()
                f = c.open(f"data-{d}-{encrypt}", CreateDisposition.FILE_OPEN)
                assert f.end_of_file == len(content)
                back = b"".join(f.read(at, limit) for at in range(0, len(content), limit))
                assert back == content, "data differs"
                refused(0xC0000011, f.read, len(content), 10)
                f.close()


@check("8 MiB in one request")
def _():
    with Client() as c:
        size = min(8 << 20, c.connection.max_write_size, c.connection.max_read_size)
        assert size == 8 << 20, f"the server's limit is {size}"
        content = random.Random(8).randbytes(size)
        c.connection.echo(credit_request=256)
        f = c.open("large")
        f.write(content, 0)
        assert f.read(0, size) == content
        f.close()


@check("a tree through the high-level interface")
def _():
    smbclient.register_session(ADDR, USER, PASSWORD, port=PORT)
    kw = dict(port=PORT)
    top = f"{SHARE}\\py"
    smbclient.makedirs(f"{top}\\a\\b", **kw)
    want = {}
    for i in range(200):
        content = random.Random(i).randbytes(i * 37)
        name = f"{top}\\a\\f{i:03}"
        with smbclient.open_file(name, "wb", **kw) as f:
            f.write(content)
        want[name.rsplit("\\", 1)[1]] = hashlib.sha256(content).hexdigest()
    assert len(smbclient.listdir(f"{top}\\a", **kw)) == 201
    for e in smbclient.scandir(f"{top}\\a", **kw):
        if e.is_file():
            with smbclient.open_file(f"{top}\\a\\{e.name}", "rb", **kw) as f:
                assert hashlib.sha256(f.read()).hexdigest() == want[e.name], e.name
    smbclient.rename(f"{top}\\a\\f001", f"{top}\\moved", **kw)
    smbclient.replace(f"{top}\\a\\f002", f"{top}\\moved", **kw)
    assert smbclient.stat(f"{top}\\moved", **kw).st_size == 74
    smbclient.link(f"{top}\\moved", f"{top}\\linked", **kw)
    assert smbclient.stat(f"{top}\\linked", **kw).st_nlink == 2
    smbclient.copyfile(f"{top}\\moved", f"{top}\\copied", **kw)
    assert smbclient.stat(f"{top}\\copied", **kw).st_size == 74
    smbclient.utime(f"{top}\\moved", (1_500_000_000, 1_600_000_000), **kw)
    assert smbclient.stat(f"{top}\\moved", **kw).st_mtime == 1_600_000_000
    smbclient.setxattr(f"{top}\\moved", b"COLOUR", b"blue", **kw)
    assert smbclient.getxattr(f"{top}\\moved", b"COLOUR", **kw) == b"blue"
    assert smbclient.listxattr(f"{top}\\moved", **kw) == [b"COLOUR"]
    with smbclient.open_file(f"{top}\\moved:stream", "wb", **kw) as f:
        f.write(b"in a stream")
    with smbclient.open_file(f"{top}\\moved:stream", "rb", **kw) as f:
        assert f.read() == b"in a stream"
    smbclient.unlink(f"{top}\\moved:stream", **kw)
    try:
        smbclient.open_file(f"{top}\\moved:stream", "rb", **kw)
        raise AssertionError("the stream is still there")
    except SMBOSError:
        pass
    v = smbclient.stat_volume(top, **kw)
    assert v.total_size >= v.caller_available_size > 0
    if os.environ.get("SERVER") != "samba":  # which has no reparse points
        smbclient.symlink("moved", f"{top}\\symlink", **kw)
        assert smbclient.path.islink(f"{top}\\symlink", **kw)
        smbclient.unlink(f"{top}\\symlink", **kw)  # rmtree of the library would ask port 445 about it
    smbclient.shutil.rmtree(top, **kw)
    assert not smbclient.path.exists(top, **kw)
    smbclient.reset_connection_cache()


@check("share modes, access and dispositions")
def _():
    with Client() as a, Client() as b:
        f = a.open("shared", share=ShareAccess.FILE_SHARE_READ)
        refused(0xC0000043, b.open, "shared", access=Access.FILE_WRITE_DATA)
        b.open("shared", access=Access.FILE_READ_DATA).close()
        f.close()
        refused(0xC0000035, b.open, "shared", CreateDisposition.FILE_CREATE)
        refused(0xC0000034, b.open, "absent", CreateDisposition.FILE_OPEN)
        refused(0xC000003A, b.open, "absent\\x", CreateDisposition.FILE_OPEN)
        refused(0xC0000033, b.open, "bad|name", CreateDisposition.FILE_OPEN_IF)
        f = b.open("shared", access=Access.FILE_READ_DATA)
        refused(0xC0000022, f.write, b"x", 0)
        f.close()
        d = a.open("doomed", options=CreateOptions.FILE_DELETE_ON_CLOSE)
        d.close()
        refused(0xC0000034, b.open, "doomed", CreateDisposition.FILE_OPEN)


def lock(f, offset, length, flags):
    element = SMB2LockElement()
    element["offset"], element["length"], element["flags"] = offset, length, flags
    request = SMB2LockRequest()
    request["file_id"], request["locks"] = f.file_id, [element]
    connection, session, tree = f.connection, f.tree_connect.session, f.tree_connect
    connection.receive(connection.send(request, session.session_id, tree.tree_connect_id))


NOW, EX, SH, UN = 0x10, 0x02, 0x01, 0x04


@check("byte-range locks")
def _():
    with Client() as a, Client() as b:
        f, g = a.open("locked"), b.open("locked")
        f.write(bytes(100), 0)
        lock(f, 0, 10, EX | NOW)
        refused(0xC0000055, lock, g, 5, 10, EX | NOW)
        refused(0xC0000055, lock, g, 9, 1, SH | NOW)
        refused(0xC0000054, g.write, b"x", 3)
        refused(0xC0000054, g.read, 0, 4)
        lock(g, 10, 10, SH | NOW)
        refused(0xC000007E, lock, g, 10, 5, UN)
        # A lock that waits is granted when the holder lets go.
        done = []
        t = threading.Thread(target=lambda: (lock(g, 0, 10, EX), done.append(time.time())))
        t.start()
        time.sleep(0.5)
        assert not done, "it did not wait"
        lock(f, 0, 10, UN)
        t.join(10)
        assert done, "the waiting lock was not granted"
        # Locks go with their open.
        g.close()
        lock(f, 0, 100, EX | NOW)
        f.close()


@check("change notification")
def _():
    with Client() as a, Client() as b:
        d = a.open("watched", access=DirectoryAccessMask.FILE_LIST_DIRECTORY | 0x100000,
                   options=CreateOptions.FILE_DIRECTORY_FILE, attributes=FileAttributes.FILE_ATTRIBUTE_DIRECTORY)
        for make, want in (
            (lambda: b.open("watched\\new").close(), (1, "new")),
            (lambda: open(os.path.join(sys.argv[5], "watched", "outside"), "w").close(), (1, "outside")),
        ):
            watcher = FileSystemWatcher(d)
            watcher.start(CompletionFilter.FILE_NOTIFY_CHANGE_FILE_NAME, flags=ChangeNotifyFlags.SMB2_WATCH_TREE)
            time.sleep(0.3)
            make()
            got = [(e["action"].get_value(), e["file_name"].get_value()) for e in watcher.wait()]
            assert want in got, got
        d.close()


@check("leases, durable handles and their reconnection")
def _():
    guid, client = uuid.uuid4(), uuid.uuid4()
    def durable_context(structure, name):
        c = SMB2CreateContextRequest()
        c["buffer_name"], c["buffer_data"] = name, structure
        return c
    def lease():
        s = SMB2CreateRequestLeaseV2()
        s["lease_key"], s["parent_lease_key"], s["epoch"] = b"k" * 16, bytes(16), bytes(2)
        s["lease_state"] = LeaseState.SMB2_LEASE_READ_CACHING | LeaseState.SMB2_LEASE_HANDLE_CACHING | LeaseState.SMB2_LEASE_WRITE_CACHING
        return durable_context(s, CreateContextName.SMB2_CREATE_REQUEST_LEASE_V2)
    def connect():
        connection = Connection(client, ADDR, PORT, True)
        connection.connect()
        session = Session(connection, USER, PASSWORD, require_encryption=False)
        session.connect()
        tree = TreeConnect(session, SHARE)
        tree.connect()
        return connection, session, tree
    connection, session, tree = connect()
    request = SMB2CreateDurableHandleRequestV2()
    request["timeout"], request["create_guid"] = 60_000, guid
    f = Open(tree, "durable")
    answers = f.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, CreateDisposition.FILE_OPEN_IF, 0,
                       [durable_context(request, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2), lease()],
                       RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE)
    names = [type(a).__name__ for a in answers]
    assert any("Durable" in n for n in names) and any("Lease" in n for n in names), names
    f.write(b"before the cut", 0)
    lock(f, 0, 5, EX | NOW)
    file_id = f.file_id
    connection.transport.close()  # the cable is pulled
    time.sleep(0.5)
    connection, session, tree = connect()
    again = SMB2CreateDurableHandleReconnectV2()
    again["file_id"], again["create_guid"] = file_id, guid
    g = Open(tree, "durable")
    g.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, CreateDisposition.FILE_OPEN_IF, 0,
             [durable_context(again, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2), lease()],
             RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE)
    assert g.read(0, 100) == b"before the cut"
    lock(g, 0, 5, UN)  # the lock lived on
    g.close()
    connection.disconnect(True)


@check("encryption required by the share")
def _():
    encrypted = f"\\\\{ADDR}\\enc"
    refused(0xC0000022, Client, Dialects.SMB_2_1_0, share=encrypted)
    for cipher in (Ciphers.AES_128_CCM, Ciphers.AES_128_GCM, Ciphers.AES_256_CCM, Ciphers.AES_256_GCM):
        with Client(Dialects.SMB_3_1_1, True, encrypted, preferred_encryption_algos=[cipher]) as c:
            f = c.open(f"sealed-{cipher}")
            f.write(b"x" * 70_000, 0)
            assert f.read(0, 70_000) == b"x" * 70_000
            f.close()


@check("every signing algorithm")
def _():
    for algorithm in (SigningAlgorithms.HMAC_SHA256, SigningAlgorithms.AES_CMAC, SigningAlgorithms.AES_GMAC):
        with Client(Dialects.SMB_3_1_1, preferred_signing_algos=[algorithm]) as c:
            f = c.open(f"signed-{algorithm}")
            f.write(b"y" * 300, 0)
            assert f.read(0, 300) == b"y" * 300
            f.close()


@check("wrong password, unknown share")
def _():
    def logon(user, password):
        connection = Connection(uuid.uuid4(), ADDR, PORT, True)
        connection.connect()
        try:
            Session(connection, user, password).connect()
        finally:
            connection.disconnect(False)
    refused(0xC000006D, logon, USER, "wrong")
    refused(0xC000006D, logon, "nobody-here", "x")
    refused(0xC00000CC, Client, share=f"\\\\{ADDR}\\nothing")


@check("a hundred clients at once")
def _():
    errors = []
    def one(i):
        try:
            with Client() as c:
                for n in range(5):
                    f = c.open(f"c{i}-{n}")
                    f.write(str(i).encode() * 100, 0)
                    assert f.read(0, 10_000) == str(i).encode() * 100
                    f.close()
        except Exception as e:
            errors.append(f"{i}: {type(e).__name__} {e}")
    threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:3]


finish("smbprotocol")
