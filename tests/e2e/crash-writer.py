"""Writes until the server dies, and notes what the server acknowledged.   ADDR PORT ROUND LOG
Each line of LOG was true once its flush (or its close, for names) was answered: `file PATH SHA256`,
`counter PATH N` (the file holds N or more), `gone PATH`, `made PATH`."""
import hashlib, os, random, sys, threading, uuid

from smbprotocol.connection import Connection
from smbprotocol.open import CreateDisposition, CreateOptions, ImpersonationLevel, Open
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

addr, port, round_, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], open(sys.argv[4], "a", buffering=1)
guard = threading.Lock()


def acknowledged(line):
    with guard:
        log.write(line + "\n")


def work(n):
    rng = random.Random(f"{round_}{n}")
    connection = Connection(uuid.uuid4(), addr, port, True)
    connection.connect()
    session = Session(connection, "tester", "pw", require_encryption=n == 0)
    session.connect()
    tree = TreeConnect(session, f"\\\\{addr}\\test")
    tree.connect()

    def create(path, disposition=CreateDisposition.FILE_OPEN_IF, options=0):
        f = Open(tree, path)
        f.create(ImpersonationLevel.Impersonation, 0x1F01FF, 0, 7, disposition, options)
        return f

    counter, i = create(f"counter-{n}"), 0
    while True:
        i += 1
        name, content = f"r{round_}-t{n}-{i:06}", rng.randbytes(rng.choice((10, 4096, 50_000, 300_000)))
        f = create(name, CreateDisposition.FILE_CREATE)
        f.write(content, 0)
        f.flush()
        acknowledged(f"file {name} {hashlib.sha256(content).hexdigest()}")
        f.close()
        counter.write(b"%012d" % (int(round_) * 10_000_000 + i), 0)
        counter.flush()
        acknowledged(f"counter counter-{n} {int(round_) * 10_000_000 + i}")
        if i % 7 == 0:
            d = create(name, options=CreateOptions.FILE_DELETE_ON_CLOSE)
            acknowledged(f"deleting {name}")
            d.close()
            acknowledged(f"gone {name}")
        if i % 11 == 0:
            create(f"d-{name}", CreateDisposition.FILE_CREATE, CreateOptions.FILE_DIRECTORY_FILE).close()
            acknowledged(f"made d-{name}")


def until_it_dies(n):
    try:
        work(n)
    except Exception as e:
        print(f"writer {n}: {type(e).__name__}: {str(e)[:100]}", flush=True)


threads = [threading.Thread(target=until_it_dies, args=(n,), daemon=True) for n in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
os._exit(0)
