#!/usr/bin/env python3
"""Runs in the guest: the Linux kernel's SMB client against a server. /job/config.json says where it is and
which parts to run. Prints one line a check; exits 1 when one fails. What it leaves on the share is listed
with checksums in /job/manifest.json, for the host to compare with what lies in the directory."""
import ctypes, errno, fcntl, hashlib, json, mmap, os, random, struct, subprocess, sys, time, traceback

config = json.load(open("/job/config.json"))
MNT, MNT2 = "/tmp/a", "/tmp/b"
failures, manifest, mounted = [], {}, []


def run(*command, check=True):
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and p.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {p.returncode}: {p.stdout.strip()}")
    return p.stdout


def mount(options, at=MNT, share=None, address=None):
    share, address = share or config["share"], address or config["address"]
    os.makedirs(at, exist_ok=True)
    run("/sbin/busybox", "mount", "-t", "cifs", f"//{address}/{share}", at, "-o",
        f"ip={address},unc=\\\\{address}\\{share},port={config['port']},user={config['user']},pass={config['password']},{options}")
    mounted.append(at)


def umount(at=MNT):
    for _ in range(50):
        if subprocess.run(["/sbin/busybox", "umount", at], capture_output=True).returncode == 0:
            mounted.remove(at)
            return
        time.sleep(0.1)
    raise RuntimeError(f"{at} stays busy")


def check(name):
    """Runs the function at once and reports it; a failure does not stop the others."""
    def wrap(f):
        if only := config.get("only"):
            if not any(o in name for o in only):
                return f
        started = time.time()
        try:
            f()
            print(f"ok   {name} ({time.time() - started:.1f} s)", flush=True)
        except Exception as e:
            failures.append(name)
            where = traceback.extract_tb(e.__traceback__)[-1]
            print(f"FAIL {name}: {type(e).__name__}: {e} (line {where.lineno}: {where.line})", flush=True)
        while mounted:
            try:
                umount(mounted[-1])
            except RuntimeError as e:
                print(f"FAIL {name}: {e}", flush=True)
                failures.append(name)
                subprocess.run(["/sbin/busybox", "umount", "-l", mounted.pop()])
        return f
    return wrap


def expect(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}: got {got!r:.200}, want {want!r:.200}")


def fails(number, f, *args):
    try:
        f(*args)
    except OSError as e:
        if e.errno in (number if isinstance(number, tuple) else (number,)):
            return
        raise
    raise AssertionError(f"{f.__name__}{args} did not fail")


def data(seed, size):
    return random.Random(seed).randbytes(size)


def put(path, content):
    with open(path, "wb") as f:
        f.write(content)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def keep(path, content):
    """To be compared on the host: path below the share."""
    manifest[path] = hashlib.sha256(content).hexdigest()


def fails_to_mount(options, share):
    try:
        mount(options, share=share)
    except RuntimeError:
        return
    raise AssertionError(f"{share} mounts with {options}")


def basic(options, name):
    """Small and large files, names, directories; and again from the server after a remount."""
    mount(options)
    top = f"{MNT}/{name}"
    os.mkdir(top)
    files = {f"f{size}": data(f"{name}{size}", size) for size in (0, 1, 4095, 4096, 70_000, 1 << 20, (5 << 20) + 7)}
    for n, content in files.items():
        put(f"{top}/{n}", content)
    os.makedirs(f"{top}/d1/d2/d3")
    put(f"{top}/d1/d2/d3/deep", b"deep")
    for i in range(300):
        put(f"{top}/d1/n{i:04}", str(i).encode())
    expect(len(os.listdir(f"{top}/d1")), 301, "listing")
    os.rename(f"{top}/f1", f"{top}/one")
    os.rename(f"{top}/d1/d2", f"{top}/moved")
    os.unlink(f"{top}/f4095")
    fails(errno.ENOENT, os.stat, f"{top}/f1")
    fails(errno.ENOENT, os.stat, f"{top}/f4095")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{top}/d1")
    fails(errno.EEXIST, os.mkdir, f"{top}/d1")
    with open(f"{top}/f4096", "ab") as f:
        f.write(b"appended")
    os.truncate(f"{top}/f70000", 12_345)
    files["one"] = files.pop("f1")
    del files["f4095"]
    files["f4096"] += b"appended"
    files["f70000"] = files["f70000"][:12_345]
    s = os.statvfs(MNT)
    assert s.f_blocks > 0 and s.f_bavail <= s.f_blocks, "statfs"
    umount()
    mount(options)
    expect(sorted(os.listdir(top)), sorted([*files, "d1", "moved"]), "names after remount")
    for n, content in files.items():
        expect(os.stat(f"{top}/{n}").st_size, len(content), n)
        assert get(f"{top}/{n}") == content, f"{n} differs after remount"
        keep(f"{name}/{n}", content)
    expect(get(f"{top}/moved/d3/deep"), b"deep")
    expect(get(f"{top}/d1/n0042"), b"42")
    expect(len([e for e in os.scandir(f"{top}/d1") if e.is_file()]), 300, "files after remount")
    for i in range(300):
        os.unlink(f"{top}/d1/n{i:04}")
    os.rmdir(f"{top}/d1")


for version in config["versions"]:
    check(f"files and directories, {version}")(lambda: basic(f"vers={version}", f"basic-{version}"))

check("files and directories, 3.1.1 sealed")(lambda: basic("vers=3.1.1,seal", "basic-seal"))
check("files and directories, 3.1.1 signed")(lambda: basic("vers=3.1.1,sign", "basic-sign"))
check("files and directories, 3.1.1 uncached")(lambda: basic("vers=3.1.1,cache=none", "basic-nocache"))
FULL = "vers=3.1.1"


@check("a share that requires encryption")
def _():
    if not config.get("encrypted_share"):
        return
    fails_to_mount("vers=2.1", config["encrypted_share"])
    mount("vers=3.1.1,seal", share=config["encrypted_share"])
    content = data("enc", 3_000_000)
    put(f"{MNT}/sealed", content)
    umount()
    mount("vers=3.0,seal", share=config["encrypted_share"])
    assert get(f"{MNT}/sealed") == content


@check("multichannel")
def _():
    mount("vers=3.1.1,multichannel,max_channels=4", address=config["host_address"])
    content = data("mc", 24 << 20)
    put(f"{MNT}/multichannel", content)
    umount()
    mount("vers=3.1.1,multichannel,max_channels=4", address=config["host_address"])
    assert get(f"{MNT}/multichannel") == content, "data differs"
    keep("multichannel", content)
    debug = open("/proc/fs/cifs/DebugData").read()
    channels = max([int(l.split(":")[1].split()[0]) for l in debug.splitlines() if "Extra Channels" in l] or [0])
    channels = max(channels, debug.count("Channel: "))
    assert channels >= 1, f"no further channel was opened:\n{debug}"


@check("random writes against a model")
def _():
    mount(FULL)
    rng, model, path = random.Random(7), bytearray(), f"{MNT}/random"
    f = os.open(path, os.O_RDWR | os.O_CREAT)
    for step in range(400):
        what, at = rng.random(), rng.randrange(0, 3_000_000)
        if what < 0.6:
            piece = rng.randbytes(rng.choice((1, 100, 4096, 10_000, 70_000)))
            os.pwrite(f, piece, at)
            if at > len(model):
                model.extend(bytes(at - len(model)))
            model[at:at + len(piece)] = piece
        elif what < 0.9:
            n = rng.choice((1, 5000, 100_000))
            assert os.pread(f, n, at) == bytes(model[at:at + n]), f"step {step}: read at {at}"
        elif what < 0.95:
            os.ftruncate(f, at)
            if at < len(model):
                del model[at:]
            else:
                model.extend(bytes(at - len(model)))
        else:
            os.fsync(f)
    os.close(f)
    umount()
    mount(FULL)
    assert get(path) == bytes(model), "differs after remount"
    keep("random", bytes(model))


@check("O_DIRECT")
def _():
    mount(FULL)
    size = 4 << 20
    buffer = mmap.mmap(-1, size)
    content = data("direct", size)
    buffer[:] = content
    f = os.open(f"{MNT}/direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    for at in range(0, size, 1 << 20):
        expect(os.pwritev(f, [memoryview(buffer)[at:at + (1 << 20)]], at), 1 << 20, "write")
    back = mmap.mmap(-1, size)
    for at in range(0, size, 1 << 18):
        expect(os.preadv(f, [memoryview(back)[at:at + (1 << 18)]], at), 1 << 18, "read")
    assert back[:] == content, "direct read differs"
    os.close(f)
    assert get(f"{MNT}/direct") == content, "buffered read differs"
    umount()
    mount(FULL)
    assert get(f"{MNT}/direct") == content
    keep("direct", content)


@check("mmap")
def _():
    mount(FULL)
    content = bytearray(data("mmap", 1 << 20))
    put(f"{MNT}/mapped", content)
    with open(f"{MNT}/mapped", "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
        assert m[:] == bytes(content), "mapped view differs"
        for at in range(0, 1 << 20, 100_003):
            m[at:at + 5] = content[at:at + 5] = b"patch"
        m.flush()
        m.close()
    umount()
    mount(FULL)
    assert get(f"{MNT}/mapped") == bytes(content), "differs after remount"
    keep("mapped", bytes(content))


@check("rename and unlink of open files")
def _():
    mount(FULL)
    os.makedirs(f"{MNT}/open")
    f = os.open(f"{MNT}/open/a", os.O_RDWR | os.O_CREAT)
    os.write(f, b"before ")
    os.rename(f"{MNT}/open/a", f"{MNT}/open/b")
    os.write(f, b"after")
    os.fsync(f)
    expect(os.pread(f, 100, 0), b"before after", "through the old handle")
    os.close(f)
    expect(get(f"{MNT}/open/b"), b"before after", "by the new name")
    put(f"{MNT}/open/target", b"old")
    os.rename(f"{MNT}/open/b", f"{MNT}/open/target")
    expect(get(f"{MNT}/open/target"), b"before after", "replaced")
    f = os.open(f"{MNT}/open/target", os.O_RDWR)
    os.unlink(f"{MNT}/open/target")
    expect(os.pread(f, 6, 0), b"before", "an unlinked file still reads")
    os.pwrite(f, b"BEFORE", 0)
    os.close(f)
    for _ in range(30):  # the client may hold the handle a little longer
        if not os.listdir(f"{MNT}/open"):
            break
        time.sleep(0.1)
    expect(os.listdir(f"{MNT}/open"), [], "nothing is left")
    fails(errno.ENOENT, os.stat, f"{MNT}/open/target")
    put(f"{MNT}/open/target", b"new")
    expect(get(f"{MNT}/open/target"), b"new", "the name can be used again")
    umount()
    mount(FULL)
    expect(get(f"{MNT}/open/target"), b"new", "after remount")


def lock(f, kind, start, length):
    fcntl.lockf(f, kind | fcntl.LOCK_NB, length, start)


@check("locks between two clients")
def _():
    mount(FULL)
    mount(FULL + ",nosharesock", at=MNT2)
    put(f"{MNT}/locks", bytes(1000))
    a, b = os.open(f"{MNT}/locks", os.O_RDWR), os.open(f"{MNT2}/locks", os.O_RDWR)
    busy = (errno.EACCES, errno.EAGAIN)
    lock(a, fcntl.LOCK_EX, 0, 100)
    fails(busy, lock, b, fcntl.LOCK_EX, 50, 10)
    fails(busy, lock, b, fcntl.LOCK_SH, 0, 1)
    lock(b, fcntl.LOCK_EX, 100, 100)
    fails(busy, lock, a, fcntl.LOCK_SH, 150, 1)
    lock(a, fcntl.LOCK_SH, 500, 10)
    lock(b, fcntl.LOCK_SH, 500, 10)
    fails(busy, lock, b, fcntl.LOCK_EX, 505, 1)
    fcntl.lockf(a, fcntl.LOCK_UN, 100, 0)
    lock(b, fcntl.LOCK_EX, 50, 10)
    # A waiting lock is granted when its holder closes.
    started = time.time()
    if os.fork() == 0:
        c = os.open(f"{MNT}/locks", os.O_RDWR)
        fcntl.lockf(c, fcntl.LOCK_EX, 10, 100)
        os._exit(0)
    time.sleep(1)
    os.close(b)
    _, status = os.wait()
    expect(status, 0, "the waiting process")
    assert 0.8 < time.time() - started < 20, "the wait"
    os.close(a)


@check("two clients see each other's writes")
def _():
    mount(FULL)
    mount(FULL + ",nosharesock", at=MNT2)
    a = os.open(f"{MNT}/shared", os.O_RDWR | os.O_CREAT)
    os.pwrite(a, b"one", 0)  # stays in the client's cache while it has the lease
    b = os.open(f"{MNT2}/shared", os.O_RDWR)
    expect(os.pread(b, 10, 0), b"one", "the second client reads what the first cached")
    os.pwrite(b, b"TWO", 0)
    os.fsync(b)
    os.close(b)
    for _ in range(30):
        if os.pread(a, 10, 0) == b"TWO":
            break
        time.sleep(0.1)
    expect(os.pread(a, 10, 0), b"TWO", "the first client reads what the second wrote")
    os.close(a)
    put(f"{MNT}/appears", b"x")
    for _ in range(30):
        if os.path.exists(f"{MNT2}/appears"):
            break
        time.sleep(0.1)
    expect(get(f"{MNT2}/appears"), b"x", "a new name")


@check("extended attributes")
def _():
    mount(FULL)
    path = f"{MNT}/eas"
    put(path, b"x")
    os.setxattr(path, "user.one", b"1")
    os.setxattr(path, "user.two", bytes(range(256)) * 4)
    os.setxattr(path, "user.one", b"changed")
    umount()
    mount(FULL)
    # The names' case is the server's business.
    expect(sorted(n.lower() for n in os.listxattr(path) if n.startswith("user.")), ["user.one", "user.two"], "names")
    expect(os.getxattr(path, "user.one"), b"changed")
    expect(os.getxattr(path, "user.two"), bytes(range(256)) * 4)
    os.removexattr(path, "user.one")
    fails(errno.ENODATA, os.getxattr, path, "user.one")


@check("security descriptors")
def _():
    mount(FULL + ",cifsacl")
    path = f"{MNT}/acl"
    put(path, b"x")
    before = os.getxattr(path, "system.cifs_acl")
    assert before[0] == 1 and len(before) >= 20, "a descriptor"
    # Revision 2, three entries: everyone read, a made-up account full and denied delete ([MS-DTYP] 2.4.4).
    def sid(*sub):
        authority = 5 if sub[0] != 0 or len(sub) > 1 else 1
        return struct.pack("<BB", 1, len(sub)) + authority.to_bytes(6, "big") + struct.pack(f"<{len(sub)}I", *sub)
    def ace(kind, mask, who):
        return struct.pack("<BBHI", kind, 0, 8 + len(who), mask) + who
    account = sid(21, 1, 2, 3, 4711)
    aces = ace(1, 0x10000, account) + ace(0, 0x1F01FF, account) + ace(0, 0x1F01FF, sid(0))
    dacl = struct.pack("<BBHHH", 2, 0, 8 + len(aces), 3, 0) + aces
    os.setxattr(path, "system.cifs_acl", struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20) + dacl)
    umount()
    mount(FULL + ",cifsacl")
    after = os.getxattr(path, "system.cifs_acl")
    offset = struct.unpack_from("<I", after, 16)[0]
    size, count = struct.unpack_from("<HH", after, offset + 2)
    expect(count, 3, "entries")
    expect(after[offset + 8:offset + size], aces, "the access list")
    expect(get(path), b"x", "everyone may still read")


@check("sparse files and server-side copies")
def _():
    mount(FULL)
    path, size = f"{MNT}/sparse", 8 << 20
    content = bytearray(data("sparse", size))
    put(path, content)
    libc = ctypes.CDLL(None, use_errno=True)
    f = os.open(path, os.O_RDWR)
    KEEP_SIZE, PUNCH_HOLE = 1, 2
    at, length = 1 << 20, 4 << 20
    result = libc.fallocate(f, KEEP_SIZE | PUNCH_HOLE, ctypes.c_long(at), ctypes.c_long(length))
    expect(result, 0, f"punch a hole, errno {ctypes.get_errno()}")
    content[at:at + length] = bytes(length)
    expect(os.pread(f, length, at), bytes(length), "the hole reads as zeroes")
    os.fsync(f)
    os.close(f)
    source, target = os.open(path, os.O_RDONLY), os.open(f"{MNT}/copied", os.O_RDWR | os.O_CREAT)
    done = 0
    while done < size:
        n = os.copy_file_range(source, target, size - done, done, done)
        assert n > 0, "copy_file_range stopped"
        done += n
    os.close(source)
    os.close(target)
    umount()
    mount(FULL)
    assert get(path) == bytes(content), "sparse file differs"
    assert get(f"{MNT}/copied") == bytes(content), "the copy differs"
    keep("sparse", bytes(content))
    keep("copied", bytes(content))


@check("names")
def _():
    mount(FULL)
    os.mkdir(f"{MNT}/names")
    names = ["Grüße", "日本語", "😀 emoji", "a" * 255, "ä" * 120, "with space", "dots.in.name", ".hidden", "UPPER", "semi;colon",
             "quote'", "100%", "#hash", "[x]", "{y}", "~1", "long name with many words.txt"]
    reserved = ['col:on', 'star*', 'quest?', 'pipe|', 'less<', 'more>', 'quot"']  # mapped by the client (SFM)
    for n in names + reserved:
        put(f"{MNT}/names/{n}", n.encode())
    umount()
    mount(FULL)
    expect(sorted(os.listdir(f"{MNT}/names")), sorted(names + reserved), "listing")
    for n in names + reserved:
        expect(get(f"{MNT}/names/{n}"), n.encode(), n)
    expect(get(f"{MNT}/names/upper"), b"UPPER", "names compare without case")
    expect(get(f"{MNT}/names/GRÜSSE".replace("SS", "ß")), "Grüße".encode(), "folding beyond ASCII")
    fails((errno.ENAMETOOLONG, errno.EINVAL), put, f"{MNT}/names/{'a' * 256}", b"")


@check("times and attributes")
def _():
    mount(FULL)
    path = f"{MNT}/times"
    put(path, b"x")
    # (the client shows no access time before the write time)
    os.utime(path, ns=(1_600_000_000_765_432_100, 1_500_000_000_123_456_700))
    os.chmod(path, 0o444)
    umount()
    mount(FULL)
    s = os.stat(path)
    expect((s.st_atime_ns, s.st_mtime_ns), (1_600_000_000_765_432_100, 1_500_000_000_123_456_700), "times")
    os.chmod(path, 0o777)
    put(path, b"again")


@check("thousands of files")
def _():
    mount(FULL)
    count = config["many"]
    started = time.time()
    for d in range(count // 500):
        os.makedirs(f"{MNT}/many/{d:03}")
    for i in range(count):
        put(f"{MNT}/many/{i // 500:03}/file-{i:05}", b"%d " % i * (i % 97))
    print(f"     {count} files written in {time.time() - started:.1f} s")
    umount()
    mount(FULL)
    started, seen = time.time(), 0
    for d in os.scandir(f"{MNT}/many"):
        for e in os.scandir(d.path):
            i = int(e.name[5:])
            content = b"%d " % i * (i % 97)
            assert e.stat().st_size == len(content), e.path
            if i % 5 == 0:
                assert get(e.path) == content, e.path
            keep(f"many/{d.name}/{e.name}", content)
            seen += 1
    expect(seen, count, "files seen")
    print(f"     listed, every fifth read again, in {time.time() - started:.1f} s")


json.dump(manifest, open("/job/manifest.json", "w"))
print(f"{len(failures)} of the kernel client's checks failed{': ' + ', '.join(failures) if failures else ''}")
sys.exit(1 if failures else 0)
