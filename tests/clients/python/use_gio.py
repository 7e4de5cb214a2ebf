"""gvfs through gio: a mount in a session bus of its own."""
import os, subprocess, sys, tempfile
from urllib.parse import quote

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve


def session_bus():
    """Runs this program once more below a session bus, with directories of its own."""
    if not os.environ.get("ARDEN_GIO_BUS"):
        where = tempfile.mkdtemp(prefix="arden-gio.")
        os.chmod(where, 0o700)
        answers = os.dup(1)
        os.set_inheritable(answers, True)
        os.dup2(2, 1)
        env = {**os.environ, "ARDEN_GIO_BUS": "1", "ARDEN_ANSWERS_FD": str(answers), "HOME": where, "XDG_RUNTIME_DIR": where, "GIO_USE_VFS": "gvfs", "GVFS_DISABLE_FUSE": "1"}
        os.execvpe("dbus-run-session", ["dbus-run-session", "--", "/usr/bin/python3", "-B", *sys.argv], env)


class Gio(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        place = f"{host}:{port}" if port != 445 else host
        self.root, self.top = f"smb://{place}/", f"smb://{place}/{share}/"
        subprocess.run(["gio", "mount", "-u", self.top], capture_output=True)
        done = subprocess.run(["gio", "mount", self.top], input=f"{user}\nWORKGROUP\n{password}\n", capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise PermissionError(done.stderr.strip() or done.stdout.strip())

    def do(self, *args):
        done = subprocess.run(["gio", *args], capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip()[-300:])
        return done.stdout

    def url(self, path):
        return self.top + quote(path)

    def put(self, local, path):
        self.do("copy", local, self.url(path))

    def get(self, path, local):
        self.do("copy", self.url(path), local)

    def list(self, path):
        return {"names": [n for n in self.do("list", "-h", self.url(path)).splitlines()]}

    def stat(self, path):
        text = self.do("info", "-a", "standard::size,standard::type,time::modified", self.url(path))
        of = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
        return {"size": int(of.get("standard::size", 0)), "directory": of["standard::type"] == "2" or "type: directory" in text, "mtime": int(of["time::modified"])}

    def mkdir(self, path):
        self.do("mkdir", self.url(path))

    def rmdir(self, path):
        self.do("remove", self.url(path))

    delete = rmdir

    def rename(self, old, new):
        self.do("move", self.url(old), self.url(new))

    def set_time(self, path, mtime):
        self.do("set", "-t", "uint64", self.url(path), "time::modified", str(mtime))

    def space(self):
        text = self.do("info", "-f", self.top)
        of = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
        return {"total": int(of["filesystem::size"]), "free": int(of["filesystem::free"])}


if len(sys.argv) > 1:
    print(subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "gvfs-backends"], capture_output=True, text=True, check=True).stdout)
else:
    session_bus()
    serve(Gio())
