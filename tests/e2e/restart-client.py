"""A client of a continuously available share that lives through restarts of the daemon, with smbprotocol: it connects
again, takes its persistent handles up and repeats what was not answered, as [MS-SMB2] 3.2.4.4 has it. ADDR may be a list
HOST:PORT,HOST:PORT of the nodes of a cluster, which are tried in turn; gaps between acknowledgements are then told.
  work ADDR PORT PREFIX      writes, locks, creates until PREFIX.stop exists; notes what was acknowledged in PREFIX.acked
  share ADDR PORT PREFIX     opens the guest's shared files for a moment, so that they lose write caching
  refused ADDR PORT PREFIX N  the guest's locks on its first N files keep others out
  verify ADDR PORT PREFIX DIRECTORY GUEST    what was acknowledged is in the directory"""
import hashlib, json, os, struct, sys, threading, time, uuid

import smbprotocol.connection as wire
from smbprotocol.connection import Connection
from smbprotocol.create_contexts import (
    CreateContextName, LeaseState, SMB2CreateContextRequest, SMB2CreateDurableHandleReconnectV2,
    SMB2CreateDurableHandleRequestV2, SMB2CreateRequestLeaseV2)
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.open import (
    CreateDisposition, ImpersonationLevel, Open, RequestedOplockLevel, SMB2LockElement, SMB2LockRequest)
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

MODE, ADDR, PORT, PREFIX = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
WORKERS, RECORD = 3, 64
SERVERS = [(h, int(p)) for h, p in (a.rsplit(":", 1) for a in ADDR.split(","))] if ":" in ADDR else [(ADDR, PORT)]
GAP_TOLD = 0.3
EXCLUSIVE_NOW, UNLOCK = 0x12, 0x4
PERSISTENT, REPLAY_OPERATION = 2, 0x20000000
LOCK_NOT_GRANTED, NAME_NOT_FOUND, FILE_NOT_AVAILABLE = 0xC0000055, 0xC0000034, 0xC0000467
BAD_NETWORK_NAME = 0xC00000CC
# The library says nothing of persistent handles and replays; both are a bit each.
replaying = threading.local()
plain_header = wire.SMB2HeaderRequest


class Header(plain_header):
    def __init__(self):
        super().__init__()
        if getattr(replaying, "on", False):
            self["flags"].set_flag(REPLAY_OPERATION)


wire.SMB2HeaderRequest = Header


def context(structure, name):
    c = SMB2CreateContextRequest()
    c["buffer_name"], c["buffer_data"] = name, structure
    return c


class Lost(Exception):
    pass


class Client:
    """One client, by its ClientGuid, over as many connections as it takes."""

    def __init__(self):
        self.guid, self.files, self.connection, self.reconnects, self.server = uuid.uuid4(), {}, None, 0, 0
        self.connect() if len(SERVERS) == 1 else self.again()

    def connect(self):
        host, port = SERVERS[self.server % len(SERVERS)]
        self.connection = Connection(self.guid, host, port, True)
        self.connection.client_capabilities |= 0x10
        self.connection.connect(timeout=5)
        session = Session(self.connection, "tester", "pw", require_encryption=False)
        session.connect()
        self.tree = TreeConnect(session, f"\\\\{host}\\ca")
        self.tree.connect()
        for f in self.files.values():
            f.reclaim()

    def again(self):
        self.reconnects += 1
        end = time.time() + 60
        while True:
            try:
                self.connection.transport.close()
            except Exception:
                pass
            try:
                return self.connect()
            except SMBResponseException as e:
                if e.status != BAD_NETWORK_NAME:
                    raise
            except Exception:
                pass
            self.server += 1
            if time.time() > end:
                raise RuntimeError("no connection for a minute")
            time.sleep(0.05)

    def until_answered(self, call):
        """Makes the call, and makes it again as a replay when the connection was lost before its answer."""
        try:
            while True:
                try:
                    return call()
                except SMBResponseException:
                    raise
                except Exception as e:
                    if isinstance(e, (AssertionError, KeyError, TypeError, AttributeError)):
                        raise
                    self.again()
                    replaying.on = True
        finally:
            replaying.on = False


class File:
    def __init__(self, client, name, disposition=CreateDisposition.FILE_OPEN_IF, cached=True):
        self.client, self.name, self.disposition = client, name, disposition
        self.guid, self.key = uuid.uuid4(), uuid.uuid4().bytes if cached else None
        self.sequences, self.id, self.epoch, self.closing = {}, None, 0, False
        client.until_answered(self.create)
        client.files[name] = self

    def lease(self):
        s = SMB2CreateRequestLeaseV2()
        s["lease_key"], s["parent_lease_key"] = self.key, bytes(16)
        s["epoch"] = struct.pack("<H", self.epoch)
        s["lease_state"] = (LeaseState.SMB2_LEASE_READ_CACHING | LeaseState.SMB2_LEASE_HANDLE_CACHING
                            | LeaseState.SMB2_LEASE_WRITE_CACHING)
        return context(s, CreateContextName.SMB2_CREATE_REQUEST_LEASE_V2)

    def open(self, first):
        o = Open(self.client.tree, self.name)
        level = RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE if self.key else RequestedOplockLevel.SMB2_OPLOCK_LEVEL_NONE
        contexts = [first] + ([self.lease()] if self.key else [])
        answers = o.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, self.disposition, 0, contexts, level)
        self.open_now, self.id = o, o.file_id
        return answers

    def create(self):
        r = SMB2CreateDurableHandleRequestV2()
        r["timeout"], r["create_guid"] = 120_000, self.guid
        r["flags"].set_flag(PERSISTENT)
        answers = self.open(context(r, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2))
        granted = [a for a in answers if type(a).__name__ == "SMB2CreateDurableHandleResponseV2"]
        assert granted and granted[0]["flags"].get_value() == PERSISTENT, "the handle is not persistent"

    def reclaim(self):
        r = SMB2CreateDurableHandleReconnectV2()
        r["file_id"], r["create_guid"] = self.id, self.guid
        r["flags"].set_flag(PERSISTENT)
        on, replaying.on = getattr(replaying, "on", False), False
        try:
            self.open(context(r, CreateContextName.SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2))
        except SMBResponseException as e:
            if e.status != NAME_NOT_FOUND or not self.closing:
                raise
            self.closing = "done"
        finally:
            replaying.on = on

    def write(self, data, offset):
        self.client.until_answered(lambda: self.open_now.write(data, offset))

    def lock(self, offset, length, flags, bucket):
        """[MS-SMB2] 3.2.4.19: a number for each bucket lets the server tell a repetition from a new request."""
        number = self.sequences[bucket] = (self.sequences.get(bucket, 0) + 1) % 16

        def call():
            element = SMB2LockElement()
            element["offset"], element["length"], element["flags"] = offset, length, flags
            request = SMB2LockRequest()
            request["lock_sequence"] = bucket << 4 | number
            request["file_id"], request["locks"] = self.id, [element]
            o = self.open_now
            sent = o.connection.send(request, o.tree_connect.session.session_id, o.tree_connect.tree_connect_id)
            o.connection.receive(sent)
        self.client.until_answered(call)

    def close(self):
        """Repeated after a loss; a handle that cannot be taken up again was closed by the call whose answer was lost."""
        self.closing = True

        def call():
            if self.closing != "done":
                self.open_now.close()
        self.client.until_answered(call)
        del self.client.files[self.name]


def record(worker, number):
    return hashlib.sha256(b"%d %d" % (worker, number)).digest() * 2


def work(worker, acked, failures):
    try:
        client = Client()
        log = File(client, f"py-{worker}")
        locked = File(client, f"py-locked-{worker}", cached=False)
        locked.lock(1 << 41, 10, EXCLUSIVE_NOW, 64)
        acked(f"held {worker}")
        number = 0
        while not os.path.exists(PREFIX + ".stop"):
            log.write(record(worker, number), number * RECORD)
            acked(f"record {worker} {number}")
            locked.lock(number * 10, 10, EXCLUSIVE_NOW, 1 + number % 60)
            if number >= 5:
                locked.lock((number - 5) * 10, 10, UNLOCK, 1 + (number - 5) % 60)
            if number % 7 == 0:
                name = f"py-new-{worker}-{number}"
                f = File(client, name, CreateDisposition.FILE_CREATE)
                f.write(record(worker, number), 0)
                f.close()
                acked(f"file {name} {worker} {number}")
            number += 1
        # Exactly the last five locks and the first are held: each can be given back once.
        for n in range(max(0, number - 5), number):
            locked.lock(n * 10, 10, UNLOCK, 1 + n % 60)
        locked.lock(1 << 41, 10, UNLOCK, 64)
        locked.lock(0, 1 << 40, EXCLUSIVE_NOW, 63)
        locked.close()
        log.close()
        acked(f"done {worker} {number} after {client.reconnects} reconnections")
    except Exception as e:
        import traceback
        traceback.print_exc()
        failures.append(f"worker {worker}: {type(e).__name__}: {e}")


def main_work():
    failures, guard, out = [], threading.Lock(), open(PREFIX + ".acked", "w")
    last = [time.time()]

    def acked(line):
        with guard:
            gap, last[0] = time.time() - last[0], time.time()
            if len(SERVERS) > 1 and gap > GAP_TOLD:
                print(f"gap {gap:.2f} s", flush=True)
            out.write(line + "\n")
            out.flush()
    threads = [threading.Thread(target=work, args=(w, acked, failures)) for w in range(WORKERS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print("\n".join(failures) or f"{WORKERS} workers met no error", flush=True)
    os._exit(bool(failures))


def plain(client, name):
    o = Open(client.tree, name)
    o.create(ImpersonationLevel.Impersonation, 0x12019F, 0, 7, CreateDisposition.FILE_OPEN, 0)
    return o


def share():
    client = Client()
    for n in (0, 1):
        plain(client, f"guest-{n}").close()
    client.connection.disconnect(True)


def refused():
    client, checked = Client(), 0
    for n in range(int(sys.argv[5])):
        o = plain(client, f"guest-{n}")
        element = SMB2LockElement()
        element["offset"], element["length"], element["flags"] = (1 << 40) + 10 * n, 1, EXCLUSIVE_NOW
        request = SMB2LockRequest()
        request["file_id"], request["locks"] = o.file_id, [element]
        try:
            sent = client.connection.send(request, client.tree.session.session_id, client.tree.tree_connect_id)
            client.connection.receive(sent)
            sys.exit(f"the lock that a program in the guest holds on guest-{n} is gone")
        except SMBResponseException as e:
            assert e.status == LOCK_NOT_GRANTED, e
        o.close()
        checked += 1
    client.connection.disconnect(True)
    print(f"{checked} locks of the guest keep others out")


def verify():
    directory, guest = sys.argv[5], sys.argv[6]
    records = files = faults = 0
    data = {w: open(f"{directory}/py-{w}", "rb").read() for w in range(WORKERS)}
    for line in open(PREFIX + ".acked"):
        what, *rest = line.split()
        if what == "record":
            w, n = map(int, rest)
            faults += data[w][n * RECORD:(n + 1) * RECORD] != record(w, n)
            records += 1
        elif what == "file":
            name, w, n = rest[0], int(rest[1]), int(rest[2])
            faults += open(f"{directory}/{name}", "rb").read() != record(w, n)
            files += 1
        elif what == "done":
            print(line.strip())
    if os.path.exists(guest):
        for name, count in json.load(open(guest)).items():
            got = open(f"{directory}/{name}", "rb").read()
            n = int(name.split("-")[1])
            for i in range(count):
                faults += got[i * RECORD:(i + 1) * RECORD] != record(100 + n, i)
                records += 1
    print(f"{records} acknowledged records and {files} files compared, {faults} faults")
    sys.exit(bool(faults))


{"work": main_work, "share": share, "refused": refused, "verify": verify}[MODE]()
