"""libsmb2, a C library, by its blocking functions."""
import ctypes as c, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve

lib = c.CDLL(os.environ["LIBSMB2"] + "/libsmb2.so")
V, S, I, U32, U64 = c.c_void_p, c.c_char_p, c.c_int, c.c_uint32, c.c_uint64


class Stat(c.Structure):
    _fields_ = [("type", U32), ("nlink", U32), ("ino", U64), ("size", U64), ("atime", U64), ("atime_ns", U64), ("mtime", U64), ("mtime_ns", U64),
                ("ctime", U64), ("ctime_ns", U64), ("btime", U64), ("btime_ns", U64)]


class Statvfs(c.Structure):
    _fields_ = [("bsize", U32), ("frsize", U32), ("blocks", U64), ("bfree", U64), ("bavail", U64), ("more", U32 * 6)]


class Dirent(c.Structure):
    _fields_ = [("name", S), ("st", Stat)]


for name, result, kinds in [
        ("init_context", V, []), ("set_seal", None, [V, I]), ("set_timeout", None, [V, I]), ("set_user", None, [V, S]), ("set_password", None, [V, S]),
        ("set_security_mode", None, [V, c.c_uint16]), ("connect_share", I, [V, S, S, S]), ("get_error", S, [V]), ("open", V, [V, S, I]), ("close", I, [V, V]),
        ("pread", I, [V, V, S, U32, U64]), ("pwrite", I, [V, V, S, U32, U64]), ("get_max_read_size", U32, [V]), ("get_max_write_size", U32, [V]),
        ("opendir", V, [V, S]), ("readdir", c.POINTER(Dirent), [V, V]), ("closedir", None, [V, V]), ("unlink", I, [V, S]), ("rmdir", I, [V, S]),
        ("mkdir", I, [V, S]), ("rename", I, [V, S, S]), ("truncate", I, [V, S, U64]), ("stat", I, [V, S, c.POINTER(Stat)]),
        ("statvfs", I, [V, S, c.POINTER(Statvfs)]), ("readlink", I, [V, S, S, U32])]:
    function = getattr(lib, "smb2_" + name)
    function.restype, function.argtypes = result, kinds


class Libsmb2(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        self.c = lib.smb2_init_context()
        lib.smb2_set_timeout(self.c, 30)
        lib.smb2_set_password(self.c, password.encode())
        lib.smb2_set_seal(self.c, 1 if encrypt else 0)
        lib.smb2_set_security_mode(self.c, 1)
        self.made(lib.smb2_connect_share(self.c, f"{host}:{port}".encode(), share.encode(), user.encode()))

    def made(self, result):
        if result is None or result < 0:
            raise OSError((lib.smb2_get_error(self.c) or b"").decode(errors="replace").strip() or f"error {result}")
        return result

    def opened(self, path, flags):
        return self.made(lib.smb2_open(self.c, path.encode(), flags))

    def pour(self, fh, local, offset):
        with open(local, "rb") as f:
            while data := f.read(lib.smb2_get_max_write_size(self.c)):
                while data:
                    n = self.made(lib.smb2_pwrite(self.c, fh, data, len(data), offset))
                    data, offset = data[n:], offset + n
        self.made(lib.smb2_close(self.c, fh))

    def put(self, local, path):
        self.pour(self.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), local, 0)

    def write_at(self, path, offset, local):
        self.pour(self.opened(path, os.O_RDWR), local, offset)

    def get(self, path, local):
        fh, offset, size = self.opened(path, os.O_RDONLY), 0, lib.smb2_get_max_read_size(self.c)
        buffer = c.create_string_buffer(size)
        with open(local, "wb") as f:
            while n := self.made(lib.smb2_pread(self.c, fh, buffer, size, offset)):
                f.write(buffer.raw[:n])
                offset += n
        self.made(lib.smb2_close(self.c, fh))

    def truncate(self, path, size):
        self.made(lib.smb2_truncate(self.c, path.encode(), size))

    def list(self, path):
        at, names = self.made(lib.smb2_opendir(self.c, path.encode())), []
        while e := lib.smb2_readdir(self.c, at):
            names.append(e.contents.name.decode())
        lib.smb2_closedir(self.c, at)
        return {"names": names}

    def stat(self, path):
        s = Stat()
        self.made(lib.smb2_stat(self.c, path.encode(), c.byref(s)))
        return {"size": s.size, "directory": s.type == 1, "mtime": s.mtime}

    def mkdir(self, path):
        self.made(lib.smb2_mkdir(self.c, path.encode()))

    def rmdir(self, path):
        self.made(lib.smb2_rmdir(self.c, path.encode()))

    def delete(self, path):
        self.made(lib.smb2_unlink(self.c, path.encode()))

    def rename(self, old, new):
        self.made(lib.smb2_rename(self.c, old.encode(), new.encode()))

    def space(self):
        s = Statvfs()
        self.made(lib.smb2_statvfs(self.c, b"", c.byref(s)))
        return {"total": s.blocks * s.bsize, "free": s.bavail * s.bsize}

    def parallel(self, puts, gets):
        """A context is one thread's."""
        self.one_by_one(puts, gets)


if len(sys.argv) > 1:
    print(open(os.environ["LIBSMB2"] + "/version").read().strip())
else:
    serve(Libsmb2())
