"""A user who asks for the worst, or who measures how long an ECHO takes, or an open and a close of a file: ADDR PORT USER LOAD SECONDS"""
import socket, struct, sys, threading, time, uuid

from smbprotocol.change_notify import ChangeNotifyFlags, CompletionFilter, FileSystemWatcher
from smbprotocol.connection import Connection
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.file_info import FileInformationClass
from smbprotocol.open import (
    CreateDisposition, CreateOptions, ImpersonationLevel, Open, QueryDirectoryFlags, SMB2ReadRequest, SMB2SetInfoRequest,
    SMB2WriteRequest)
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

ADDR, PORT, USER, LOAD, SECONDS = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5])


class Client:
    def __init__(self, share="test"):
        self.connection = Connection(uuid.uuid4(), ADDR, PORT, True)
        self.connection.connect()
        self.session = Session(self.connection, USER, "pw", require_encryption=False)
        self.session.connect()
        self.tree = TreeConnect(self.session, f"\\\\{ADDR}\\{share}")
        self.tree.connect()
        self.connection.echo(sid=self.session.session_id, credit_request=8192)

    def open(self, path, options=0, disposition=CreateDisposition.FILE_OPEN_IF):
        o = Open(self.tree, path)
        o.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, disposition, options)
        return o

    def send(self, *requests):
        """Sends without waiting for answers."""
        sid, tid = self.session.session_id, self.tree.tree_connect_id
        if len(requests) == 1:
            return [self.connection.send(requests[0], sid, tid)]
        return self.connection.send_compound(list(requests), sid, tid, related=False)


def read_of(o, length):
    r = SMB2ReadRequest()
    r["length"], r["offset"], r["file_id"] = length, 0, o.file_id
    return r


def size_of(o, size):
    r = SMB2SetInfoRequest()
    r["info_type"], r["file_info_class"], r["file_id"], r["buffer"] = 1, 20, o.file_id, struct.pack("<Q", size)
    return r


def write_of(c, length):
    """A WRITE of so many bytes to a handle that is none, as it goes over the wire, unsigned."""
    ids = struct.pack("<QIIQ16x", 1 << 40, 0, c.tree.tree_connect_id, c.session.session_id)
    header = b"\xfeSMB" + struct.pack("<HHIHHII", 64, length // 65536, 0, 9, 1, 0, 0) + ids
    body = struct.pack("<HHIQQQIIHHI", 49, 112, length, 0, 1, 1, 0, 0, 0, 0, 0)
    message = header + body + bytes(length)
    return struct.pack(">I", len(message)) + message


def begun():
    print("begun", flush=True)


def half_sent():
    """Large messages without their last bytes, on as many connections as a small client has."""
    clients = [Client() for _ in range(40)]
    def send(c):
        try:
            c.connection.transport._sock.sendall(write_of(c, 8 << 20)[:-1000])
        except OSError:
            pass  # Its session was ended.
    for c in clients:
        threading.Thread(target=send, args=(c,), daemon=True).start()
    begun()
    time.sleep(SECONDS)
    return f"{len(clients)} messages"


def behind_unread():
    """Answers that nobody reads take the user's turn; large messages on other connections wait behind them."""
    readers, writers = [Client() for _ in range(4)], [Client() for _ in range(16)]
    for c in readers + writers:
        c.file = c.open("large")
    for c in readers:
        sock = c.connection.transport._sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(8):
            c.send(read_of(c.file, 8 << 20))
    def send(c):
        w = SMB2WriteRequest()
        w["length"], w["offset"], w["file_id"], w["buffer"] = 8 << 20, 0, c.file.file_id, bytes(8 << 20)
        try:
            for _ in range(4):
                c.send(w)
        except Exception:
            pass  # Its session was ended.
    for c in writers:
        threading.Thread(target=send, args=(c,), daemon=True).start()
    begun()
    time.sleep(SECONDS)
    return f"{len(writers)} connections"


def until_refused(end, one):
    """As many as it gets; then it keeps trying."""
    held = []
    while time.time() < end:
        try:
            held.append(one(len(held)))
        except SMBResponseException as e:
            if e.status not in (0xC000011F, 0xC000009A):
                raise
            time.sleep(0.01)
    return f"{len(held)} held"


def measure(end, what):
    c, took = Client(), []
    while time.time() < end:
        began = time.perf_counter()
        if what == "echo":
            c.connection.echo(sid=c.session.session_id)
        else:
            c.open("visited").close()
        took.append(time.perf_counter() - began)
        time.sleep(0.002)
    took.sort()
    print(f"p99 {took[len(took) * 99 // 100] * 1000:.2f}")
    print(f"median {took[len(took) // 2] * 1000:.2f}, {len(took)} times")


def load(end):
    # Two that have to log on often first, and last as long as the others from then on.
    if LOAD in ("halves", "behind"):
        return (half_sent if LOAD == "halves" else behind_unread)()
    c = Client("IPC$" if LOAD == "pipes" else "test")
    begun()
    if LOAD == "none":
        time.sleep(SECONDS)
        return "nothing"
    if LOAD == "listings":
        def begin(n):
            o = c.open("names", CreateOptions.FILE_DIRECTORY_FILE)
            o.query_directory("*", FileInformationClass.FILE_NAMES_INFORMATION,
                              flags=QueryDirectoryFlags.SMB2_RETURN_SINGLE_ENTRY)
            return o
        return until_refused(end, begin)
    if LOAD == "opens":
        return until_refused(end, lambda n: c.open("small"))
    if LOAD == "pipes":
        return until_refused(end, lambda n: c.open("srvsvc", disposition=CreateDisposition.FILE_OPEN))
    if LOAD == "watches":
        def watch(n):
            w = FileSystemWatcher(c.open("names", CreateOptions.FILE_DIRECTORY_FILE))
            w.start(CompletionFilter.FILE_NOTIFY_CHANGE_FILE_NAME, ChangeNotifyFlags.SMB2_WATCH_TREE, 8 << 20)
            return w
        return until_refused(end, watch)
    done, large = 0, c.open("large")
    names = c.open("names", CreateOptions.FILE_DIRECTORY_FILE)
    while time.time() < end:
        if LOAD == "compounds":
            for r in c.send(*[read_of(large, 8 << 20) for _ in range(50)]):
                try:
                    c.connection.receive(r)
                except SMBResponseException as e:
                    assert e.status == 0xC000009A, f"{e.status:#x}"
        elif LOAD == "patterns":
            try:
                names.query_directory("*a" * 127 + "c", FileInformationClass.FILE_NAMES_INFORMATION,
                                      flags=QueryDirectoryFlags.SMB2_RESTART_SCANS)
            except SMBResponseException as e:
                assert e.status in (0xC000000F, 0x80000006), f"{e.status:#x}"
        elif LOAD == "sizes":
            for size in (1 << 40, 0, 64 << 20):
                c.connection.receive(c.send(size_of(large, size))[0])
        elif LOAD == "unread":
            # As many as its credits allow; the answers are never asked for.
            if done < 60:
                c.send(read_of(large, 8 << 20))
            else:
                time.sleep(0.05)
        done += 1
    return f"{done} times"


end = time.time() + SECONDS
if LOAD in ("echo", "visit"):
    measure(end, LOAD)
else:
    try:
        print(load(end))
    except Exception as e:
        # Its session was ended.
        print(f"ended: {e!r:.100}")
