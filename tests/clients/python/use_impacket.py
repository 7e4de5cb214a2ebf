"""impacket's SMBConnection."""
import os, sys
from importlib.metadata import version

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve
from impacket.smbconnection import SMBConnection
from impacket import smb3structs


class Impacket(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        self.share = share
        self.c = SMBConnection(host, host, sess_port=port, timeout=30)
        self.c.login(user, password)
        self.tree = self.c.connectTree(share)

    def nt(self, path):
        return path.replace("/", "\\")

    def put(self, local, path):
        with open(local, "rb") as f:
            self.c.putFile(self.share, self.nt(path), f.read)

    def get(self, path, local):
        with open(local, "wb") as f:
            self.c.getFile(self.share, self.nt(path), f.write)

    def write_at(self, path, offset, local):
        f = self.c.openFile(self.tree, self.nt(path), desiredAccess=smb3structs.FILE_WRITE_DATA)
        with open(local, "rb") as data:
            self.c.writeFile(self.tree, f, data.read(), offset)
        self.c.closeFile(self.tree, f)

    def list(self, path):
        return {"names": [e.get_longname() for e in self.c.listPath(self.share, self.nt(path) + "\\*")]}

    def stat(self, path):
        e = self.c.listPath(self.share, self.nt(path))[0]
        return {"size": e.get_filesize(), "directory": bool(e.is_directory()), "mtime": e.get_mtime_epoch()}

    def mkdir(self, path):
        self.c.createDirectory(self.share, self.nt(path))

    def rmdir(self, path):
        self.c.deleteDirectory(self.share, self.nt(path))

    def delete(self, path):
        self.c.deleteFile(self.share, self.nt(path))

    def rename(self, old, new):
        self.c.rename(self.share, self.nt(old), self.nt(new))

    def shares(self):
        return {"names": [s["shi1_netname"][:-1] for s in self.c.listShares()]}

    def parallel(self, puts, gets):
        """A connection is one thread's."""
        self.one_by_one(puts, gets)


if len(sys.argv) > 1:
    print(version("impacket"))
else:
    serve(Impacket())
