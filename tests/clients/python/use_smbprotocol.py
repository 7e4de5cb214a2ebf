"""smbprotocol, by its module smbclient, which looks like the standard library's os and shutil."""
import os, stat as modes, sys
from importlib.metadata import version

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve
import smbclient
import smbclient.shutil
from smbprotocol import security_descriptor
from smbprotocol.open import FilePipePrinterAccessMask


class Smbprotocol(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        # A cache of its own: one after a restart must not find the connection of before.
        self.how = {"username": user, "password": password, "port": port, "connection_cache": {}, "connection_timeout": 20}
        smbclient.register_session(host, encrypt=encrypt or None, auth_protocol="ntlm", **self.how)
        self.top = rf"\\{host}\{share}"
        smbclient.stat(self.top, **self.how)

    def at(self, path):
        return self.top + "\\" + path.replace("/", "\\")

    def put(self, local, path):
        with open(local, "rb") as f, smbclient.open_file(self.at(path), mode="wb", **self.how) as to:
            smbclient.shutil.copyfileobj(f, to) if hasattr(smbclient.shutil, "copyfileobj") else to.write(f.read())

    def get(self, path, local):
        with smbclient.open_file(self.at(path), mode="rb", **self.how) as f, open(local, "wb") as to:
            while data := f.read(1 << 20):
                to.write(data)

    def write_at(self, path, offset, local):
        with open(local, "rb") as f, smbclient.open_file(self.at(path), mode="r+b", **self.how) as to:
            to.seek(offset)
            to.write(f.read())

    def truncate(self, path, size):
        smbclient.truncate(self.at(path), size, **self.how)

    def list(self, path):
        return {"names": smbclient.listdir(self.at(path), **self.how)}

    def stat(self, path):
        s = smbclient.stat(self.at(path), **self.how)
        return {"size": s.st_size, "directory": modes.S_ISDIR(s.st_mode), "mtime": s.st_mtime}

    def mkdir(self, path):
        smbclient.mkdir(self.at(path), **self.how)

    def rmdir(self, path):
        smbclient.rmdir(self.at(path), **self.how)

    def delete(self, path):
        smbclient.remove(self.at(path), **self.how)

    def remove_all(self, path):
        smbclient.shutil.rmtree(self.at(path), **self.how)

    def rename(self, old, new):
        smbclient.replace(self.at(old), self.at(new), **self.how)

    def set_time(self, path, mtime):
        smbclient.utime(self.at(path), times=(mtime, mtime), **self.how)

    def symlink(self, target, path):
        smbclient.symlink(target, self.at(path), **self.how)

    def readlink(self, path):
        return {"target": smbclient.readlink(self.at(path), **self.how)}

    def space(self):
        s = smbclient.stat_volume(self.top, **self.how)
        return {"total": s.total_size, "free": s.caller_available_size}


if len(sys.argv) > 1:
    print(version("smbprotocol"))
else:
    serve(Smbprotocol())
