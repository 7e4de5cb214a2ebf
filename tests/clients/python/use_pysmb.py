"""pysmb: one connection, direct TCP."""
import os, sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve
from smb.SMBConnection import SMBConnection
from importlib.metadata import version


class Pysmb(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        self.share = share
        self.how = dict(host=host, port=port, user=user, password=password, share=share, encrypt=encrypt)
        self.c = SMBConnection(user, password, "matrix", "server", use_ntlm_v2=True, is_direct_tcp=True)
        if not self.c.connect(host, port, timeout=20):
            raise PermissionError("not authenticated")

    def put(self, local, path):
        with open(local, "rb") as f:
            self.c.storeFile(self.share, path, f)

    def get(self, path, local):
        with open(local, "wb") as f:
            self.c.retrieveFile(self.share, path, f)

    def write_at(self, path, offset, local):
        with open(local, "rb") as f:
            self.c.storeFileFromOffset(self.share, path, f, offset=offset, truncate=False)

    def list(self, path):
        return {"names": [f.filename for f in self.c.listPath(self.share, path)]}

    def stat(self, path):
        a = self.c.getAttributes(self.share, path)
        return {"size": a.file_size, "directory": a.isDirectory, "mtime": a.last_write_time}

    def mkdir(self, path):
        self.c.createDirectory(self.share, path)

    def rmdir(self, path):
        self.c.deleteDirectory(self.share, path)

    def delete(self, path):
        self.c.deleteFiles(self.share, path)

    def remove_all(self, path):
        self.c.deleteFiles(self.share, f"{path}/one/*")
        self.c.deleteFiles(self.share, f"{path}/two/*")
        self.c.deleteFiles(self.share, f"{path}/*", delete_matching_folders=True)
        self.c.deleteDirectory(self.share, path)

    def rename(self, old, new):
        self.c.rename(self.share, old, new)

    def set_time(self, path, mtime):
        self.c.setLastWriteTime(self.share, path, mtime)

    def set_attributes(self, path, hidden):
        self.c.resetFileAttributes(self.share, path, 0x02)

    def shares(self):
        return {"names": [s.name for s in self.c.listShares()]}

    def acl(self, path):
        d = self.c.getSecurity(self.share, path)
        return {"acl": f"{d.owner} {d.group} {d.dacl and [str(a) for a in d.dacl.aces]}"}

    def parallel(self, puts, gets):
        """A connection is one thread's, so each thread has its own."""
        def one(work):
            other = Pysmb()
            other.connect(**self.how)
            for op, args in work:
                getattr(other, op)(**args)
            other.c.close()
        todo = [("put", {"local": a, "path": b}) for a, b in puts] + [("get", {"path": a, "local": b}) for a, b in gets]
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(one, todo[i::4]) for i in range(4)]:
                done.result()


if len(sys.argv) > 1:
    print(version("pysmb"))
else:
    serve(Pysmb())
