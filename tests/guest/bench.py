#!/usr/bin/env python3
"""Runs in the guest: the Linux kernel's SMB client on shares of several servers in turn. /job/config.json names them. Prints a line
where each work begins and ends, by which the host reads the processor time of its server."""
import json, os, subprocess, time

config = json.load(open("/job/config.json"))
FILES, BYTES, LARGE = config["files"], 16 << 10, config["large_mib"] << 20
PIECE = os.urandom(1 << 20)


def run(*command):
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if p.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {p.returncode}: {p.stdout.strip()}")


def mount(side):
    at = f"/tmp/{side['name']}"
    os.makedirs(at)
    # Signed, and nothing is answered by what the client remembers.
    run("/sbin/busybox", "mount", "-t", "cifs", f"//10.0.2.2/{side['share']}", at, "-o",
        f"ip=10.0.2.2,unc=\\\\10.0.2.2\\{side['share']},port={side['port']},user=tester,pass=pw,vers=3.1.1,sec=ntlmsspi,"
        "actimeo=0,nosharesock" + side["options"])
    # Two shares may be of one volume.
    os.makedirs(f"{at}/of-{side['name']}/d")
    return f"{at}/of-{side['name']}"


def forget():
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def create(at):
    for n in range(FILES):
        with open(f"{at}/d/file-{n}", "wb", buffering=0) as f:
            f.write(PIECE[:BYTES])
    return FILES


def stat(at):
    for n in range(FILES):
        assert os.stat(f"{at}/d/file-{n}").st_size == BYTES
    return FILES


def read(at):
    for n in range(FILES):
        with open(f"{at}/d/file-{n}", "rb", buffering=0) as f:
            assert f.read() == PIECE[:BYTES]
    return FILES


def listing(at):
    for _ in range(5):
        assert len(os.listdir(f"{at}/d")) == FILES
    return 5 * FILES


def rename(at):
    for n in range(FILES):
        os.rename(f"{at}/d/file-{n}", f"{at}/d/moved-{n}")
    return FILES


def delete(at):
    for n in range(FILES):
        os.unlink(f"{at}/d/moved-{n}")
    return FILES


def write_large(at):
    with open(f"{at}/large", "wb", buffering=0) as f:
        for _ in range(LARGE >> 20):
            f.write(PIECE)
        os.fsync(f.fileno())
    return LARGE >> 20


def read_large(at):
    with open(f"{at}/large", "rb", buffering=0) as f:
        for _ in range(LARGE >> 20):
            assert f.read(1 << 20) == PIECE
    return LARGE >> 20


works = [create, stat, read, listing, rename, delete, write_large, read_large]
at = {side["name"]: mount(side) for side in config["sides"]}
for _ in range(config["rounds"]):
    for work in works:
        for side in config["sides"]:
            forget()
            print(f"BEGIN {side['name']} {work.__name__}", flush=True)
            begun = time.monotonic()
            count = work(at[side["name"]])
            took = time.monotonic() - begun
            print(f"END {side['name']} {work.__name__} {count} {took:.3f}", flush=True)
            # The host reads what the server does behind it, too, and writes what was left in its caches.
            time.sleep(1)
