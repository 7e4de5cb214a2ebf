"""libsmbclient, Samba's C library, by its own functions: one context, blocking calls."""
import ctypes as c, os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from urllib.parse import quote
from adapter import Adapter, serve

lib = c.CDLL("libsmbclient.so.0", use_errno=True)
AUTH = c.CFUNCTYPE(None, c.c_char_p, c.c_char_p, c.c_void_p, c.c_int, c.c_void_p, c.c_int, c.c_void_p, c.c_int)
CHUNK = 1 << 20


class Stat(c.Structure):  # struct stat of x86-64 Linux
    _fields_ = [("dev", c.c_ulong), ("ino", c.c_ulong), ("nlink", c.c_ulong), ("mode", c.c_uint), ("uid", c.c_uint), ("gid", c.c_uint), ("pad", c.c_int),
                ("rdev", c.c_ulong), ("size", c.c_long), ("blksize", c.c_long), ("blocks", c.c_long), ("atime", c.c_long), ("atimensec", c.c_long),
                ("mtime", c.c_long), ("mtimensec", c.c_long), ("more", c.c_long * 5)]


class Statvfs(c.Structure):
    _fields_ = [("bsize", c.c_ulong), ("frsize", c.c_ulong), ("blocks", c.c_ulong), ("bfree", c.c_ulong), ("bavail", c.c_ulong), ("more", c.c_ulong * 20)]


class Timeval(c.Structure):
    _fields_ = [("sec", c.c_long), ("usec", c.c_long)]


class Dirent(c.Structure):
    _fields_ = [("type", c.c_uint), ("dirlen", c.c_uint), ("commentlen", c.c_uint), ("comment", c.c_char_p), ("namelen", c.c_uint), ("name", c.c_char * 1)]


lib.smbc_new_context.restype = lib.smbc_init_context.restype = lib.smbc_set_context.restype = c.c_void_p
for f in ("smbc_init_context", "smbc_set_context"):
    getattr(lib, f).argtypes = [c.c_void_p]
for name, kinds in {"smbc_setFunctionAuthData": [c.c_void_p, AUTH], "smbc_setPort": [c.c_void_p, c.c_uint16], "smbc_setTimeout": [c.c_void_p, c.c_int],
                    "smbc_setOptionSmbEncryptionLevel": [c.c_void_p, c.c_int], "smbc_setOptionUrlEncodeReaddirEntries": [c.c_void_p, c.c_int]}.items():
    getattr(lib, name).argtypes = kinds
lib.smbc_open.argtypes = [c.c_char_p, c.c_int, c.c_uint]
lib.smbc_read.argtypes = lib.smbc_write.argtypes = [c.c_int, c.c_char_p, c.c_size_t]
lib.smbc_read.restype = lib.smbc_write.restype = c.c_ssize_t
lib.smbc_lseek.argtypes, lib.smbc_lseek.restype = [c.c_int, c.c_long, c.c_int], c.c_long
lib.smbc_ftruncate.argtypes = [c.c_int, c.c_long]
lib.smbc_readdir.argtypes, lib.smbc_readdir.restype = [c.c_uint], c.POINTER(Dirent)


def made(result):
    if result < 0:
        e = c.get_errno()
        raise OSError(e, os.strerror(e))
    return result


class Smbc(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        self.root, self.top = f"smb://{host}:{port}", f"smb://{host}:{port}/{share}"

        def auth(server, share, group, group_len, name, name_len, secret, secret_len):
            c.memmove(name, user.encode() + b"\0", len(user.encode()) + 1)
            c.memmove(secret, password.encode() + b"\0", len(password.encode()) + 1)

        self.auth = AUTH(auth)
        context = lib.smbc_new_context()
        lib.smbc_setFunctionAuthData(context, self.auth)
        lib.smbc_setTimeout(context, 20_000)
        if encrypt:
            lib.smbc_setOptionSmbEncryptionLevel(context, 2)  # required
        if not lib.smbc_init_context(context):
            raise OSError("smbc_init_context")
        lib.smbc_set_context(context)
        lib.smbc_closedir(made(lib.smbc_opendir(self.top.encode())))

    def url(self, path):
        return f"{self.top}/{quote(path)}".encode()

    def open(self, path, flags):
        return made(lib.smbc_open(self.url(path), flags, 0o666))

    def pour(self, fd, local):
        with open(local, "rb") as f:
            while data := f.read(CHUNK):
                while data:
                    data = data[made(lib.smbc_write(fd, data, len(data))):]

    def put(self, local, path):
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.pour(fd, local)
        made(lib.smbc_close(fd))

    def get(self, path, local):
        fd, buffer = self.open(path, os.O_RDONLY), c.create_string_buffer(CHUNK)
        with open(local, "wb") as f:
            while n := made(lib.smbc_read(fd, buffer, CHUNK)):
                f.write(buffer.raw[:n])
        made(lib.smbc_close(fd))

    def write_at(self, path, offset, local):
        fd = self.open(path, os.O_RDWR)
        made(lib.smbc_lseek(fd, offset, os.SEEK_SET))
        self.pour(fd, local)
        made(lib.smbc_close(fd))

    def truncate(self, path, size):
        fd = self.open(path, os.O_RDWR)
        made(lib.smbc_ftruncate(fd, size))
        made(lib.smbc_close(fd))

    def entries(self, url):
        at, names = made(lib.smbc_opendir(url)), []
        while e := lib.smbc_readdir(at):
            names.append(c.string_at(c.addressof(e.contents) + Dirent.name.offset).decode())
        made(lib.smbc_closedir(at))
        return names

    def list(self, path):
        return {"names": self.entries(self.url(path))}

    def stat(self, path):
        s = Stat()
        made(lib.smbc_stat(self.url(path), c.byref(s)))
        return {"size": s.size, "directory": s.mode & 0o170000 == 0o40000, "mtime": s.mtime}

    def mkdir(self, path):
        made(lib.smbc_mkdir(self.url(path), 0o777))

    def rmdir(self, path):
        made(lib.smbc_rmdir(self.url(path)))

    def delete(self, path):
        made(lib.smbc_unlink(self.url(path)))

    def rename(self, old, new):
        made(lib.smbc_rename(self.url(old), self.url(new)))

    def set_time(self, path, mtime):
        made(lib.smbc_utimes(self.url(path), (Timeval * 2)(Timeval(mtime, 0), Timeval(mtime, 0))))

    def set_attributes(self, path, hidden):
        value = b"MODE:0x22"
        made(lib.smbc_setxattr(self.url(path), b"system.dos_attr.*", value, c.c_size_t(len(value)), 2))

    def shares(self):
        return {"names": self.entries(self.root.encode())}

    def space(self):
        s = Statvfs()
        made(lib.smbc_statvfs(self.top.encode(), c.byref(s)))
        unit = s.frsize if s.frsize > 1 and s.bsize <= s.frsize else s.bsize * max(s.frsize, 1)
        return {"total": s.blocks * unit, "free": s.bavail * unit}

    def acl(self, path):
        buffer = c.create_string_buffer(65536)
        made(lib.smbc_getxattr(self.url(path), b"system.nt_sec_desc.*", buffer, c.c_size_t(65536)))
        return {"acl": buffer.value.decode()}

    def parallel(self, puts, gets):
        """A context is one thread's; all files are open at once."""
        fds = [(self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), open(local, "rb").read()) for local, path in puts]
        for at in range(0, 1 << 20, 65536):
            for fd, data in fds:
                made(lib.smbc_write(fd, data[at:at + 65536], len(data[at:at + 65536])))
        for fd, _ in fds:
            made(lib.smbc_close(fd))
        for path, local in gets:
            self.get(path, local)


if len(sys.argv) > 1:
    print(subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libsmbclient"], capture_output=True, text=True).stdout)
else:
    serve(Smbc())
