#!/usr/bin/env python3
"""Runs in the guest: a program that writes and locks files on a continuously available share through the kernel's client,
and that must not notice that the daemon is killed and started again. Says /job/ready, counts in /job/progress, ends when
/job/stop is there; what fsync acknowledged is in /job/acked.json."""
import fcntl, hashlib, json, os, struct, subprocess, sys, time

config = json.load(open("/job/config.json"))
MNT, FILES, RECORD = "/tmp/ca", 4, 64


def record(n, i):
    return hashlib.sha256(b"%d %d" % (100 + n, i)).digest() * 2


def say(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def mount():
    os.makedirs(MNT, exist_ok=True)
    a, s = config["address"], config["share"]
    subprocess.run(["/sbin/busybox", "mount", "-t", "cifs", f"//{a}/{s}", MNT, "-o",
                    f"ip={a},unc=\\\\{a}\\{s},port={config['port']},user={config['user']},pass={config['password']},"
                    # nostrictsync: fsync writes pages out and sends no FLUSH, which this share does not need, and which kernels
                    # before 6.8 do not repeat when its answer is lost.
                    "vers=3.1.1,persistenthandles,hard,nostrictsync,echo_interval=2"], check=True)
    options = next(line for line in open("/proc/mounts") if f" {MNT} " in line)
    assert "persistenthandles" in options, options


def lock(fd, offset, length, how):
    # struct flock of x86-64: type, whence, start, length, pid.
    fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", how, 0, offset, length, 0))


def main():
    mount()
    fds = [os.open(f"{MNT}/guest-{n}", os.O_RDWR | os.O_CREAT, 0o644) for n in range(FILES)]
    for n, fd in enumerate(fds):
        os.pwrite(fd, record(n, 0), 0)
        os.fsync(fd)
        # Held from here to the end, far behind the data.
        lock(fd, (1 << 40) + 10 * n, 10, fcntl.F_WRLCK)
    say("/job/ready", "")
    counts, rounds, slowest = [1] * FILES, 0, 0.0
    while not os.path.exists("/job/stop"):
        for n, fd in enumerate(fds):
            began = time.time()
            for _ in range(4):
                data = record(n, counts[n])
                assert os.pwrite(fd, data, counts[n] * RECORD) == RECORD
                counts[n] += 1
            os.fsync(fd)
            back = os.pread(fd, RECORD, (counts[n] - 1) * RECORD)
            assert back == data, f"guest-{n}: read something else than was written"
            slowest = max(slowest, time.time() - began)
        rounds += 1
        say("/job/acked.json", json.dumps({f"guest-{n}": counts[n] for n in range(FILES)}))
        say("/job/progress", str(rounds))
    for n, fd in enumerate(fds):
        lock(fd, (1 << 40) + 10 * n, 10, fcntl.F_UNLCK)
        os.close(fd)
    print(f"guest: {sum(counts)} records in {rounds} rounds, the slowest write took {slowest:.1f} s, no error", flush=True)
    subprocess.run(["/sbin/busybox", "umount", MNT], check=True)


try:
    main()
except BaseException as e:
    import traceback
    traceback.print_exc()
    print(f"guest: {type(e).__name__}: {e}", flush=True)
    print(subprocess.run(["/sbin/busybox", "dmesg"], capture_output=True, text=True).stdout[-3000:], flush=True)
    sys.exit(1)
