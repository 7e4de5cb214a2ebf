"""What every client has to do on every share. A check works through a Run: it asks the client's adapter for operations, and
states what must lie on the share afterwards. On a directory that is compared at once, and on every share once more when the
daemon has stopped (matrix.py), so that the client's own word never decides."""
import json, os, queue, random, re, shutil, subprocess, threading, time

from servers import PASSWORD, USER, read_tree, sha

MANY = 3000  # names in one folder
BIG = 2 * 60 # files below the folder that is removed as a whole
OP_SECONDS = 60
SECRET = b"this lies outside of the share"


class Failed(Exception):
    """What the client or the server did is wrong."""


class Refused(Failed):
    """The operation ended with an error of the client or the server."""


class NotOffered(Exception):
    """The client has no such operation."""


class Died(Failed):
    """The adapter ended, or gave no answer in time."""


def content(name, size):
    return random.Random(f"{name} {size}").randbytes(size)


def many_names():
    """Names of every length from short to long, some of them not ASCII."""
    tails = ["", "-a rather longer name with spaces", "-ümläut-日本語", "-" + "x" * 120]
    return {f"f{i:04}{tails[i % 4]}.dat" for i in range(MANY)}


class Adapter:
    """A client's program, which answers one request at a time."""

    def __init__(self, command, log, seconds=OP_SECONDS):
        self.seconds = seconds
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "ab"), start_new_session=True)
        self.log, self.answers = log, queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def ask(self, op, **args):
        seconds = self.seconds
        try:
            self.process.stdin.write(json.dumps({"op": op, **args}).encode() + b"\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            self.end()
            raise Died(f"{op}: no answer in {seconds} s") from None
        except OSError:
            line = None
        if line is None:
            with open(self.log, errors="replace") as f:
                raise Died(f"{op}: the client's program ended: {f.read()[-300:]}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise Died(f"{op}: not an answer: {line[:200]}") from None
        if "na" in answer:
            raise NotOffered(answer["na"])
        if "error" in answer:
            raise Refused(f"{op}: {answer['error'][:300]}")
        return answer

    def end(self):
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()


class Run:
    """One client on one share."""

    def __init__(self, client, server, kind, work):
        self.client, self.server, self.kind, self.home = client, server, kind, client.name
        self.work = f"{work}/{client.name}-{kind}"
        os.makedirs(self.work, exist_ok=True)
        self.log = f"{self.work}/log"
        self.adapter = None
        self.check = None
        # What must lie below the home folder: path: (bytes, sha256), or None for a folder; and the check that says so.
        self.model, self.said_by, self.uncertain = {}, {}, set()
        # A folder with a repository of backups: a file's name is its SHA-256, but that of `config`.
        self.repository = None

    # The client.
    def fresh(self, share=None, password=PASSWORD, user=USER):
        """A program of its own, connected."""
        adapter = Adapter(self.client.command(self.server, self.work), self.log, self.client.op_seconds)
        try:
            adapter.ask("connect", host=self.server.address, port=self.server.port, user=user, password=password, share=share or self.kind,
                        encrypt=(share or "").startswith("enc"))
        except Exception:
            adapter.end()
            raise
        return adapter

    def ask(self, op, **args):
        if self.adapter is None or self.adapter.process.poll() is not None:
            self.adapter = self.fresh()
        return self.adapter.ask(op, **args)

    def path(self, name):
        return f"{self.home}/{name}" if name else self.home

    def local(self, data=None, name="local"):
        path = f"{self.work}/{name}"
        if data is not None:
            with open(path, "wb") as f:
                f.write(data)
        return path

    def put(self, name, data):
        self.ask("put", local=self.local(data, "up"), path=self.path(name))

    def get(self, name, path=None):
        to = self.local(name="down")
        if os.path.exists(to):
            os.remove(to)
        self.ask("get", path=path or self.path(name), local=to)
        with open(to, "rb") as f:
            return f.read()

    def must_refuse(self, what, op, **args):
        try:
            self.ask(op, **args)
        except Refused as e:
            return str(e)
        raise Failed(f"{what}: no error")

    # The server's side.
    def beneath(self, name):
        root = self.server.directory(self.kind)
        return root and f"{root}/{self.home}/{name}"

    def holds(self, name, data):
        """The file is there with these bytes, or is there no longer (None)."""
        parts = name.split("/")
        for i in range(1, len(parts)):
            self.folder("/".join(parts[:i]))
        there = self.beneath(name)
        if data is None:
            self.model.pop(name, None)
            if there and os.path.lexists(there):
                raise Failed(f"the server still has {name}")
            return
        self.model[name], self.said_by[name] = (len(data), sha(data)), self.check
        if there:
            try:
                with open(there, "rb") as f:
                    found = f.read()
            except OSError as e:
                raise Failed(f"on the server: {e}") from None
            if found != data:
                raise Failed(f"on the server {name} has {len(found)} bytes, {len(data)} were written, equal up to "
                             f"{next((i for i, (a, b) in enumerate(zip(found, data)) if a != b), min(len(found), len(data)))}")

    def folder(self, name):
        if name:
            self.model.setdefault(name + "/", None)
            self.said_by.setdefault(name + "/", self.check)

    def folder_gone(self, name):
        for p in [p for p in self.model if p.startswith(name + "/")]:
            del self.model[p]
        there = self.beneath(name)
        if there and os.path.lexists(there):
            raise Failed(f"the server still has {name}")

    def others_view(self, name):
        """Attributes and times as smbclient sees them."""
        return self.server.smbclient(self.kind, f'allinfo "{self.path(name)}"', check=False)


CHECKS = []  # (group, name, function)


def wrong_password(run):
    """Refused with an error, soon. Not among CHECKS: the server counts failures by address, and all clients have one."""
    began = time.time()
    try:
        adapter = run.fresh(password="not the password")
        try:
            # Some clients connect with the first operation.
            adapter.ask("list", path="many")
        finally:
            adapter.end()
    except Refused as e:
        if time.time() - began > 20:
            raise Failed(f"refused only after {time.time() - began:.0f} s")
        return str(e)
    raise Failed("a wrong password is accepted")


def check(group, name):
    def add(f):
        CHECKS.append((group, name, f))
        return f
    return add


@check("logon", "right")
def _(run):
    run.adapter = run.fresh()
    run.put("hello", b"hello")
    run.holds("hello", b"hello")


@check("list", "3000")
def _(run):
    names = [n for n in run.ask("list", path="many")["names"] if n not in (".", "..")]
    missing, more = many_names() - set(names), set(names) - many_names()
    if missing or more or len(names) != MANY:
        raise Failed(f"{len(names)} names, {len(missing)} are missing {sorted(missing)[:3]}, {len(more)} too many {sorted(more)[:3]}")


@check("list", "empty")
def _(run):
    run.ask("mkdir", path=run.path("nothing"))
    run.folder("nothing")
    names = [n for n in run.ask("list", path=run.path("nothing"))["names"] if n not in (".", "..")]
    if names:
        raise Failed(f"an empty folder has {names}")


def transfer(size):
    def body(run):
        data = content("data", size)
        run.put(f"data-{size}", data)
        run.holds(f"data-{size}", data)
        back = run.get(f"data-{size}")
        if back != data:
            raise Failed(f"{len(back)} other bytes come back")
    return body


for size in (0, 1, 65537, 9 << 20):
    check("data", str(size))(transfer(size))


@check("data", "again")
def _(run):
    run.put("again", content("long", 100_000))
    run.put("again", content("short", 10_000))
    run.holds("again", content("short", 10_000))


@check("change", "middle")
def _(run):
    data, patch = content("middle", 300_000), content("patch", 5_000)
    run.put("middle", data)
    run.holds("middle", data)
    run.ask("write_at", path=run.path("middle"), offset=100_000, local=run.local(patch, "up"))
    run.holds("middle", data[:100_000] + patch + data[105_000:])


@check("change", "truncate")
def _(run):
    data = content("truncate", 70_000)
    run.put("truncate", data)
    run.holds("truncate", data)
    run.ask("truncate", path=run.path("truncate"), size=1000)
    run.holds("truncate", data[:1000])


@check("change", "extend")
def _(run):
    data = content("extend", 1000)
    run.put("extend", data)
    run.holds("extend", data)
    run.ask("truncate", path=run.path("extend"), size=200_000)
    run.holds("extend", data + bytes(199_000))


@check("names", "rename")
def _(run):
    run.put("before", b"renamed")
    run.ask("rename", old=run.path("before"), new=run.path("after"))
    run.holds("before", None)
    run.holds("after", b"renamed")


@check("names", "rename-over")
def _(run):
    run.put("new", b"the new one")
    run.put("old", b"the old one")
    try:
        run.ask("rename", old=run.path("new"), new=run.path("old"))
    except Refused as e:
        run.holds("new", b"the new one")
        run.holds("old", b"the old one")
        return f"refused: {e}"
    run.holds("new", None)
    run.holds("old", b"the new one")
    return "replaced"


@check("names", "delete")
def _(run):
    run.put("short-lived", b"x")
    run.ask("delete", path=run.path("short-lived"))
    run.holds("short-lived", None)


@check("names", "not-empty")
def _(run):
    run.ask("mkdir", path=run.path("full"))
    run.put("full/file", b"kept")
    run.holds("full/file", b"kept")
    error = run.must_refuse("removal of a folder that is not empty", "rmdir", path=run.path("full"))
    run.holds("full/file", b"kept")
    return error


@check("names", "unicode")
def _(run):
    for name in ("Ünïcödé ß", "日本語のファイル", "emoji 🎉", "e\u0301 decomposed", "Ελληνικά", "100% & 'more' #1"):
        run.put(name, name.encode())
        run.holds(name, name.encode())
        if run.get(name) != name.encode():
            raise Failed(f"{name} comes back as something else")
    names = run.ask("list", path=run.home)["names"]
    if not {"emoji 🎉", "e\u0301 decomposed"} <= set(names):
        raise Failed(f"not listed as it was made: {names}")


@check("names", "long")
def _(run):
    for name in ("l" * 251 + ".txt", "長" * 85):
        run.put(name, b"long")
        run.holds(name, b"long")
        if run.get(name) != b"long" or name not in run.ask("list", path=run.home)["names"]:
            raise Failed("comes back as something else, or is not listed")


@check("names", "case")
def _(run):
    run.put("Case.TXT", b"one")
    run.put("case.txt", b"the other")
    if run.get("CASE.txt") != b"the other":
        raise Failed("another case is another file")
    # Whichever of the two names it has now, there is one file.
    name = "Case.TXT"
    if "case.txt" in run.ask("list", path=run.home)["names"]:
        name = "case.txt"
        run.holds("Case.TXT", None)
    run.holds(name, b"the other")


@check("folders", "nested")
def _(run):
    path = "nested"
    run.ask("mkdir", path=run.path(path))
    for i in range(12):
        path += f"/level {i}"
        run.ask("mkdir", path=run.path(path))
    run.put(f"{path}/deep", b"down here")
    run.holds(f"{path}/deep", b"down here")
    if run.get(f"{path}/deep") != b"down here":
        raise Failed("something else comes back")


@check("folders", "remove-all")
def _(run):
    path = run.path("big")
    try:
        run.ask("remove_all", path=path)
    except NotOffered:
        for sub in run.ask("list", path=path)["names"]:
            if sub not in (".", ".."):
                for name in run.ask("list", path=f"{path}/{sub}")["names"]:
                    if name not in (".", ".."):
                        run.ask("delete", path=f"{path}/{sub}/{name}")
                run.ask("rmdir", path=f"{path}/{sub}")
        run.ask("rmdir", path=path)
    run.folder_gone("big")


@check("attributes", "mtime")
def _(run):
    run.put("dated", b"old")
    run.holds("dated", b"old")
    run.ask("set_time", path=run.path("dated"), mtime=1_000_000_000)
    if run.beneath("dated") and int(os.stat(run.beneath("dated")).st_mtime) != 1_000_000_000:
        raise Failed("on the server the file has another time")
    seen = run.others_view("dated")
    if not re.search(r"write_time: +(Sun )?Sep +9 01:46:40( .. )?2001|write_time:.*Sep  ?9 01:46:40.*2001|2001-09-09", seen):
        raise Failed(f"smbclient sees another time: {seen}")
    try:
        mtime = run.ask("stat", path=run.path("dated"))["mtime"]
    except NotOffered:
        return
    if int(mtime) != 1_000_000_000:
        raise Failed(f"the client reads {mtime}")


@check("attributes", "stat")
def _(run):
    run.put("sized", content("sized", 12_345))
    run.holds("sized", content("sized", 12_345))
    got = run.ask("stat", path=run.path("sized"))
    if got["size"] != 12_345 or got["directory"] or abs(got["mtime"] - time.time()) > 300:
        raise Failed(f"{got}")
    if not run.ask("stat", path=run.path("nothing"))["directory"]:
        raise Failed("a folder is none")


@check("attributes", "hidden")
def _(run):
    run.put("concealed", b"x")
    run.holds("concealed", b"x")
    run.ask("set_attributes", path=run.path("concealed"), hidden=True)
    if not re.search(r"attributes: \w*H", run.others_view("concealed")):
        raise Failed(f"smbclient does not see it: {run.others_view('concealed')}")


@check("links", "escape")
def _(run):
    """A symbolic link that the server's own directory has must not lead out of the share."""
    root = run.server.directory(run.kind)
    if not root:
        raise NotOffered("a volume has no links of its directory")
    outside = f"{run.server.work}/outside"
    os.makedirs(outside, exist_ok=True)
    with open(f"{outside}/secret-of-the-server", "wb") as f:
        f.write(SECRET)
    link = f"{root}/{run.home}/escape"
    os.symlink(os.path.relpath(outside, os.path.dirname(link)), link)
    try:
        return run.must_refuse("a link that leaves the share", "get", path=run.path("escape/secret-of-the-server"), local=run.local(name="down"))
    finally:
        os.remove(link)


@check("links", "symlink")
def _(run):
    run.put("target", b"through the link")
    run.holds("target", b"through the link")
    run.ask("symlink", target="target", path=run.path("link"))
    try:
        run.uncertain.add("link")  # how a store keeps a link is its own business
        got = run.ask("readlink", path=run.path("link"))["target"]
        if got.replace("\\", "/").split("/")[-1] != "target":
            raise Failed(f"it leads to {got}")
        if run.get("link") != b"through the link":
            raise Failed("other bytes come through it")
    finally:
        run.ask("delete", path=run.path("link"))


@check("streams", "8x1MiB")
def _(run):
    names = [f"stream-{i}" for i in range(8)]
    data = {n: content(n, 1 << 20) for n in names}
    run.ask("parallel", puts=[[run.local(data[n], f"up-{n}"), run.path(n)] for n in names], gets=[])
    for n in names:
        run.holds(n, data[n])
    run.ask("parallel", puts=[], gets=[[run.path(n), run.local(name=f"down-{n}")] for n in names])
    for n in names:
        with open(run.local(name=f"down-{n}"), "rb") as f:
            if f.read() != data[n]:
                raise Failed(f"{n} comes back as something else")


@check("read-only", "refused")
def _(run):
    adapter = run.fresh(f"ro-{run.kind}")
    try:
        adapter.ask("get", path=run.path("hello"), local=run.local(name="down"))
        with open(run.local(name="down"), "rb") as f:
            if f.read() != b"hello":
                raise Failed("reads something else")
        try:
            adapter.ask("put", local=run.local(b"no", "up"), path=run.path("forbidden"))
        except Refused as e:
            run.holds("forbidden", None)
            return str(e)
        run.holds("forbidden", None)
        raise Failed("no error of a write")
    finally:
        adapter.end()


@check("encrypted", "works")
def _(run):
    """It works, or is refused clearly by a client that cannot encrypt."""
    data = content("sealed", 200_000)
    try:
        adapter = run.fresh(f"enc-{run.kind}")
    except Refused as e:
        if run.client.encrypts:
            raise
        return f"refused: {e}"
    try:
        adapter.ask("put", local=run.local(data, "up"), path=run.path("sealed"))
        run.holds("sealed", data)
        adapter.ask("get", path=run.path("sealed"), local=run.local(name="down"))
        with open(run.local(name="down"), "rb") as f:
            if f.read() != data:
                raise Failed("something else comes back")
        if not run.client.encrypts:
            raise Failed("the client cannot encrypt, and reaches the share")
    except Refused as e:
        if run.client.encrypts:
            raise
        return f"refused: {e}"
    finally:
        adapter.end()


@check("server", "space")
def _(run):
    got = run.ask("space")
    total, free = got["total"], got["free"]
    root = run.server.directory(run.kind)
    if root:
        want = os.statvfs(root)
        size, left = want.f_blocks * want.f_frsize, want.f_bavail * want.f_frsize
        # What is free for everybody, or what the caller may have: gvfs shows the former, [MS-FSCC] 2.5.4.
        either = (left, want.f_bfree * want.f_frsize)
        if abs(total - size) > size / 5 or min(abs(free - e) for e in either) > size / 5:
            raise Failed(f"{total} bytes, {free} free; the server's file system says {size} and {left}")
    elif not 1 << 30 < free <= total <= 4 << 30:
        raise Failed(f"{total} bytes, {free} free of a volume of 4 GiB")


@check("server", "shares")
def _(run):
    names = run.ask("shares")["names"]
    if not {run.kind, f"ro-{run.kind}"} <= set(names):
        raise Failed(f"{names}")


@check("server", "acl")
def _(run):
    acl = run.ask("acl", path=run.path("hello"))["acl"]
    if not re.search(r"S-1-\d+-\d+|tester|Everyone|WD|BA", acl):
        raise Failed(f"no security identifier: {acl[:200]}")


@check("errors", "symlink")
def _(run):
    """The error context of a symbolic link, [MS-SMB2] 2.2.2.2.1: followed from the top of the share, for names of four lengths."""
    if not run.client.reads_error_data:
        raise NotOffered("a check of libraries that read the error context")
    run.put("followed", b"followed")
    run.holds("followed", b"followed")
    for n in range(4):
        link = f"{run.home}-link{n * 'x'}"
        run.ask("symlink", target=f"{run.home}/followed", path=link)
        try:
            if run.get(None, path=link) != b"followed":
                raise Failed(f"{link}: other bytes")
        finally:
            run.ask("delete", path=link)


@check("errors", "too-small")
def _(run):
    """STATUS_BUFFER_TOO_SMALL with the size that would do, [MS-SMB2] 3.3.5.20.3; and the connection goes on."""
    try:
        got = run.ask("too_small", path=run.path("hello"))
    finally:
        if run.client.reads_error_data and run.get("hello") != b"hello":
            raise Failed("other bytes after the error")
    if got["code"] != 0xC0000023 or not 20 < got["need"] < 65536:
        raise Failed(f"status {got['code']:#x}, {got['need']} bytes would do")


def backup_tree(run, generation):
    """A folder on this machine with what backups meet: {path: content}. The second generation changes, adds and removes."""
    top = f"{run.work}/tree"
    files = {f"dir {i % 7}/sub/file-{i}": content(f"backup {i}", i * 97 % 5000) for i in range(150)}
    files |= {"empty": b"", "Ünïcödé/日本語": b"names", "large": content("large", 24 << 20)}
    if generation > 1:
        files = {n: c for i, (n, c) in enumerate(files.items()) if i % 5}
        files |= {f"dir {i}/new": content(f"new {i}", 3000) for i in range(7)}
        files["large"] = files["large"][:10 << 20] + b"changed" + files["large"][10 << 20:]
    shutil.rmtree(top, ignore_errors=True)
    for name, data in files.items():
        os.makedirs(os.path.dirname(f"{top}/{name}"), exist_ok=True)
        with open(f"{top}/{name}", "wb") as f:
            f.write(data)
    os.symlink("large", f"{top}/link")
    return top, {n: (len(c), sha(c)) for n, c in files.items()}


def restored(run, ask, want, read_only=False, link="large"):
    to = f"{run.work}/restored"
    shutil.rmtree(to, ignore_errors=True)
    ask("backup_restore", repository=run.path("repository"), to=to, read_only=read_only)
    found = {n: v for n, v in read_tree(to).items() if v and n != "link"}
    if found != want or link and os.readlink(f"{to}/link") != link:
        wrong = [n for n in {*found, *want} if found.get(n) != want.get(n)]
        raise Failed(f"{len(wrong)} files come back as something else, or not: {sorted(wrong)[:3]}")


@check("backup", "save")
def _(run):
    """A first backup, a check that reads all of it, and the whole tree back."""
    run.ask("backup_init", repository=run.path("repository"))
    run.repository = "repository/"
    tree, want = backup_tree(run, 1)
    run.ask("backup", repository=run.path("repository"), tree=tree)
    run.ask("backup_check", repository=run.path("repository"))
    restored(run, run.ask, want)


@check("backup", "forget")
def _(run):
    """A second one of a changed tree; the first is forgotten and its space freed; the second comes back."""
    if not run.repository:
        raise NotOffered("no backups")
    tree, want = backup_tree(run, 2)
    run.ask("backup", repository=run.path("repository"), tree=tree)
    if run.ask("backup_snapshots", repository=run.path("repository"))["count"] != 2:
        raise Failed("not two snapshots")
    run.ask("backup_forget", repository=run.path("repository"))
    if run.ask("backup_snapshots", repository=run.path("repository"))["count"] != 1:
        raise Failed("not one snapshot")
    run.ask("backup_check", repository=run.path("repository"))
    restored(run, run.ask, want)


@check("backup", "read-only")
def _(run):
    """From a read-only share it is restored, and nothing is saved there."""
    if not run.repository:
        raise NotOffered("no backups")
    tree, want = backup_tree(run, 2)
    adapter = run.fresh(f"ro-{run.kind}")
    try:
        restored(run, adapter.ask, want, read_only=True)
        try:
            adapter.ask("backup", repository=run.path("repository"), tree=tree)
        except Refused as e:
            return str(e)
        raise Failed("no error of a backup to a read-only share")
    finally:
        adapter.end()


@check("backup", "encrypted")
def _(run):
    """A share that requires encryption is checked to the last byte."""
    if not run.repository:
        raise NotOffered("no backups")
    adapter = run.fresh(f"enc-{run.kind}")
    try:
        adapter.ask("backup_check", repository=run.path("repository"))
    finally:
        adapter.end()
