"""Servers under test, and what lies on their shares as the server itself sees it. Arden serves each kind of share three times:
as it is, with encryption required (enc-KIND) and read-only (ro-KIND)."""
import hashlib, json, os, shutil, socket, subprocess, threading, time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
USER, PASSWORD = "tester", "pw"
VOLUME_SIZE = "4g"


def free_port():
    return int(subprocess.check_output([os.path.join(ROOT, "tests/free-port")]))


def free_address():
    """A loopback address whose port 445 is free: some clients know no other port. Without the right to it, any free port."""
    for n in range(20, 220):
        address = f"127.0.{n}.{os.getpid() % 200 + 20}"
        with socket.socket() as s:
            try:
                s.bind((address, 445))
                return address, 445
            except PermissionError:
                return "127.0.0.1", free_port()
            except OSError:
                pass
    raise RuntimeError("no free loopback address")


def sha(data):
    return hashlib.sha256(data).hexdigest()


def read_tree(root):
    """Paths of files and folders (with a slash at the end) below a directory: {path: (bytes, sha256)} or None for a folder."""
    found = {}
    for at, folders, files in os.walk(root):
        prefix = os.path.relpath(at, root)
        prefix = "" if prefix == "." else prefix + "/"
        for name in folders:
            found[f"{prefix}{name}/"] = None
        for name in files:
            with open(os.path.join(at, name), "rb") as f:
                data = f.read()
            found[prefix + name] = (len(data), sha(data))
    return found


class Server:
    def __init__(self, work):
        self.work = work
        self.address, self.port = free_address()
        self.directories = {}  # kind: directory, where the share is one

    def directory(self, kind):
        return self.directories.get(kind)

    def smbclient(self, share, commands, check=True):
        """Runs commands of smbclient, to look at a share as another client sees it."""
        done = subprocess.run(["smbclient", f"//{self.address}/{share}", "-p", str(self.port), "-U", f"{USER}%{PASSWORD}", "-c", commands],
                              capture_output=True, text=True, timeout=300)
        if check and done.returncode:
            raise RuntimeError(f"smbclient {commands}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def fill(self, kind, template):
        """Copies a tree onto a share before the clients come."""
        if self.directory(kind):
            subprocess.run(["cp", "-r", f"{template}/.", self.directory(kind)], check=True)
            subprocess.run(["chmod", "-R", "a+rwX", self.directory(kind)], check=True)
        else:
            self.smbclient(kind, f"recurse on; prompt off; lcd {template}; mput *")


class Arden(Server):
    name = "arden"

    def __init__(self, work, kinds, binary=None):
        super().__init__(work)
        self.binary = binary or os.environ.get("ARDEN") or f"{ROOT}/target/release/arden"
        self.state, self.log, self.process = f"{work}/state", f"{work}/server.log", None
        self.volumes = {}
        self.start()
        subprocess.run([*self.command, "user", "add", USER, "--password", PASSWORD], check=True, capture_output=True)
        for kind in kinds:
            if kind == "dir":
                self.directories[kind] = f"{work}/dir"
                os.makedirs(f"{work}/dir")
                where = ["--dir", f"{work}/dir"]
            else:
                self.volumes[kind] = f"v-{kind}"
                self.run("volume", "create", f"v-{kind}", "--file", f"{work}/{kind}.volume", "--size", VOLUME_SIZE)
                where = ["--volume", f"v-{kind}"]
            more = ["--ca"] if kind == "ca" else []
            self.run("share", "add", kind, *where, *more)
            self.run("share", "add", f"enc-{kind}", *where, *more, "--encrypt")
            self.run("share", "add", f"ro-{kind}", *where, *more, "--read-only")

    @property
    def command(self):
        return [self.binary, "--state", self.state]

    def run(self, *args):
        done = subprocess.run([*self.command, *args], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"arden {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.command, "serve", "--listen", f"{self.address}:{self.port}"], stdout=log, stderr=log)
        end = time.time() + 20
        while subprocess.run([*self.command, "status"], capture_output=True).returncode:
            if time.time() > end or self.process.poll() is not None:
                raise RuntimeError(f"the daemon does not answer: {open(self.log).read()[-2000:]}")
            time.sleep(0.05)

    def kill(self):
        """Ends the daemon as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            if self.process.wait(60):
                raise RuntimeError(f"the daemon ended with {self.process.returncode}")

    def abort(self):
        if self.process and self.process.poll() is None:
            self.kill()

    def tree(self, kind, top):
        """All below a folder of a share: from the directory, or of a volume what smbclient gets from a daemon that has just been
        started and has nothing in memory; one file is read from the volume itself too, see `on_disk`."""
        if self.directory(kind):
            return read_tree(f"{self.directory(kind)}/{top}")
        to = f"{self.work}/found-{kind}"
        os.makedirs(to, exist_ok=True)
        self.smbclient(kind, f"recurse on; prompt off; lcd {to}; mask *; mget {top}")
        return read_tree(f"{to}/{top}")

    def on_disk(self, kind, path):
        """A file's bytes, without a daemon."""
        self.run("volume", "get", self.volumes[kind], path, f"{self.work}/copy")
        with open(f"{self.work}/copy", "rb") as f:
            data = f.read()
        return len(data), sha(data)

    def check(self, kind):
        """The volume's own check of itself, with the daemon running."""
        if kind in self.volumes:
            out = self.run("volume", "check", self.volumes[kind], "--data")
            if "as it should be" not in out:
                raise RuntimeError(f"volume check {kind}: {out}")


class Samba(Server):
    name = "samba"

    def __init__(self, work, kinds, mode="nt"):
        super().__init__(work)
        self.directories["samba"] = f"{work}/samba-dir"
        d = self.directories["samba"]
        subprocess.run([f"{ROOT}/tests/peers/samba.sh", "up", work, str(self.port), mode, f"samba={d}", f"enc-samba={d}", f"ro-samba={d}"], check=True,
                       env={**os.environ, "SAMBA_ADDRESS": self.address})

    def stop(self):
        subprocess.run([f"{ROOT}/tests/peers/samba.sh", "down", self.work], check=False)

    abort = stop

    def tree(self, kind, top):
        return read_tree(f"{self.directory(kind)}/{top}")

    def check(self, kind):
        pass
