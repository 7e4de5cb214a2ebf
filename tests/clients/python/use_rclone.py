"""rclone's backend smb, a process for each request."""
import json, os, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve


def rclone(*args):
    done = subprocess.run(["rclone", "--config", "/dev/null", "--retries", "1", "--low-level-retries", "1", "--contimeout", "10s", *args], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip()[-300:])
    return done.stdout


class Rclone(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        secret = rclone("obscure", password).strip()
        self.remote = f":smb,host={host},port={port},user={user},pass={secret}:"
        self.top = f"{self.remote}{share}/"
        self.do("lsf", self.top, "--max-depth", "1", "--files-only")

    def do(self, *args):
        return rclone(*args)

    def put(self, local, path):
        # Without the look at size and time that leaves out what seems to be there already.
        self.do("copyto", "--ignore-times", local, self.top + path)

    def get(self, path, local):
        self.do("copyto", "--ignore-times", self.top + path, local)

    def entries(self, path):
        return json.loads(self.do("lsjson", self.top + path))

    def list(self, path):
        return {"names": [e["Name"] for e in self.entries(path)]}

    def stat(self, path):
        e = json.loads(self.do("lsjson", "--stat", self.top + path))
        when = subprocess.run(["date", "-d", e["ModTime"], "+%s"], capture_output=True, text=True).stdout
        return {"size": e["Size"], "directory": e["IsDir"], "mtime": int(when)}

    def mkdir(self, path):
        self.do("mkdir", self.top + path)

    def rmdir(self, path):
        self.do("rmdir", self.top + path)

    def delete(self, path):
        self.do("deletefile", self.top + path)

    def remove_all(self, path):
        self.do("purge", self.top + path)

    def rename(self, old, new):
        self.do("moveto", "--ignore-times", self.top + old, self.top + new)

    def set_time(self, path, mtime):
        self.do("touch", "-t", time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(mtime)), self.top + path)

    def shares(self):
        return {"names": [n.rstrip("/") for n in self.do("lsf", self.remote).splitlines()]}

    def space(self):
        got = json.loads(self.do("about", "--json", self.top))
        return {"total": got["total"], "free": got["free"]}


if len(sys.argv) > 1:
    print(rclone("version").split()[1])
else:
    serve(Rclone())
