#!/usr/bin/env python3
"""Independent SMB clients, as they are, against Arden and Samba: every client on every kind of share does every check.
   matrix.py [--work DIR] [--server arden|samba|both] [--kinds dir,volume,ca] [--clients NAME,...] [--checks GROUP,...]
             [--jobs N] [--docs FILE]
Exit status 0 when every failure is in expected.txt and everything in there fails. A client whose toolchain is missing is skipped and
counted as skipped. --docs writes the rows of the clients that ran into a page. docs/clients.md says how a client is added."""
import argparse, json, os, re, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checks, page, servers
from checks import CHECKS, Died, Failed, NotOffered, Refused, Run
from clients import CLIENTS

HERE = os.path.dirname(os.path.abspath(__file__))
RESTARTS = 2
BACK_SECONDS = 30  # within which a client can work again after a restart


class Results:
    def __init__(self):
        self.rows, self.lock = {}, threading.Lock()

    def add(self, client, kind, check, status, detail=""):
        detail = " ".join(str(detail).split())[:1500 if check == "build" else 400]
        with self.lock:
            self.rows[client, kind, check] = (status, detail)
        if status == "FAIL":
            print(f"FAIL {client} {kind} {check}: {detail}", flush=True)


def run_checks(run, results, groups):
    nobody = None
    for group, name, f in CHECKS:
        if groups and group not in groups and group != "logon":
            continue
        run.check = f"{group}.{name}"
        report = lambda status, detail="": results.add(run.client.name, run.kind, run.check, status, detail)
        if nobody:
            report("na", f"without a logon: {nobody}")
            continue
        try:
            report("ok", f(run))
        except NotOffered as e:
            report("na", e)
        except Failed as e:
            report("FAIL", e)
            nobody = e if group == "logon" else None
        except Exception as e:
            report("FAIL", f"{type(e).__name__}: {e}")
    run.check = None


def wrong_passwords(server, kind, clients, work, results):
    """One after the other: failed logons are slowed by address, and a new daemon has counted none."""
    for client in clients:
        if server.name == "arden":
            server.stop()
            server.start()
        try:
            results.add(client.name, kind, "logon.wrong", "ok", checks.wrong_password(Run(client, server, kind, work)))
        except Exception as e:
            results.add(client.name, kind, "logon.wrong", "FAIL", e)
    if server.name == "arden":
        server.stop()
        server.start()


def one_client(client, server, kind, work, results, groups):
    began = time.time()
    run = Run(client, server, kind, work)
    try:
        run_checks(run, results, groups)
    finally:
        if run.adapter:
            run.adapter.end()
    print(f"{client.name} on {server.name} {kind}: {time.time() - began:.1f} s", flush=True)
    return run


def keep_writing(run, stop, counts):
    """Small files one after the other, over kills of the daemon. After an error the client connects anew, as a program would."""
    number, errors, data = 0, [], None
    while not stop.is_set():
        name = f"restart-{number}"
        data = checks.content(name, 4096)
        try:
            run.put(name, data)
            run.holds(name, data)
            counts[run.client.name] = counts.get(run.client.name, 0) + 1
        except Refused as e:
            errors.append(str(e))
            run.uncertain.add(name)
            end = time.time() + BACK_SECONDS
            while True:
                try:
                    if run.adapter:
                        run.adapter.end()
                    run.adapter = run.fresh()
                    break
                except Refused:
                    if time.time() > end:
                        raise Failed(f"does not get back within {BACK_SECONDS} s")
                    time.sleep(0.1)
        number += 1
        time.sleep(0.01)
    # What was acknowledged is what the client reads.
    for name in [n for n in run.model if n.startswith("restart-")][-20:]:
        if run.get(name) != checks.content(name, 4096):
            raise Failed(f"reads something else of {name}")
    return f"{len(errors)} errors in {number} writes over {RESTARTS} kills" + (f": {errors[0][:120]}" if errors else "")


def keep_backing_up(run, stop, counts):
    """The same with backups: one that fails is made again, and in the end the repository is whole and gives back what was saved."""
    number, errors, top = 0, [], f"{run.work}/small"
    os.makedirs(top, exist_ok=True)
    back_by = None
    while not stop.is_set() or back_by:
        with open(f"{top}/{number % 5}", "wb") as f:
            f.write(checks.content(f"small {number}", 20_000))
        try:
            run.ask("backup", repository=run.path("repository"), tree=top)
            counts[run.client.name] = counts.get(run.client.name, 0) + 1
            back_by = None
        except Refused as e:
            errors.append(str(e))
            back_by = back_by or time.time() + BACK_SECONDS
            if time.time() > back_by:
                raise Failed(f"no backup within {BACK_SECONDS} s: {e}")
        number += 1
    run.ask("backup_unlock", repository=run.path("repository"))
    run.ask("backup_check", repository=run.path("repository"))
    checks.restored(run, run.ask, servers.read_tree(top), link=None)
    return f"{len(errors)} errors in {number} backups over {RESTARTS} kills" + (f": {errors[0][:120]}" if errors else "")


def restart_phase(runs, server, results):
    """The daemon is killed while all clients write to a continuously available share."""
    stop, counts = threading.Event(), {}

    def work(run):
        run.check = "restart.kill"
        try:
            write = keep_backing_up if run.repository else keep_writing
            results.add(run.client.name, run.kind, run.check, "ok", write(run, stop, counts))
        except NotOffered as e:
            results.add(run.client.name, run.kind, run.check, "na", e)
        except Exception as e:
            results.add(run.client.name, run.kind, run.check, "FAIL", e)
        finally:
            if run.adapter:
                run.adapter.end()

    threads = [threading.Thread(target=work, args=(r,)) for r in runs]
    for t in threads:
        t.start()

    def all_go_on(seconds):
        end, before = time.time() + seconds, dict(counts)
        while time.time() < end and any(t.is_alive() and counts.get(r.client.name, 0) < before.get(r.client.name, 0) + 3 for t, r in zip(threads, runs)):
            time.sleep(0.1)

    all_go_on(20)
    for _ in range(RESTARTS):
        server.kill()
        time.sleep(0.3)
        server.start()
        all_go_on(BACK_SECONDS + 10)
    stop.set()
    for t in threads:
        t.join()


def read_without_daemon(run, server, results):
    """The largest file of a client from the volume itself."""
    path, want = max(((p, w) for p, w in run.model.items() if w), key=lambda e: e[1][0], default=(None, None))
    if path:
        found = server.on_disk(run.kind, f"{run.home}/{path}")
        if found != want:
            results.add(run.client.name, run.kind, run.said_by[path], "FAIL", f"on the volume {path} is {found}, not {want}")


def verify(run, server, results):
    """What lies on the share at the end, down to the last byte, against what the client was told that it wrote."""
    found = server.tree(run.kind, run.home)
    wrong = {}
    for path, want in run.model.items():
        if path not in found:
            wrong.setdefault(run.said_by.get(path), []).append(f"{path} is not there")
        elif found[path] != want:
            wrong.setdefault(run.said_by.get(path), []).append(f"{path} is {found[path]}, not {want}")
    for check, what in wrong.items():
        if results.rows.get((run.client.name, run.kind, check), ("", ""))[0] != "FAIL":
            results.add(run.client.name, run.kind, check or "tree", "FAIL", f"on the server at the end: {len(what)} wrong, {what[0]}")
    if run.repository:
        verify_repository(run, found, results)
    # What failed half-way may have left something.
    failed = any(s == "FAIL" for (c, k, _), (s, _) in results.rows.items() if (c, k) == (run.client.name, run.kind))
    more = [p for p in found if p not in run.model and p not in run.uncertain and not p.startswith(run.repository or "//")]
    if more and not failed:
        results.add(run.client.name, run.kind, "tree.end", "FAIL", f"left over: {more[:5]}")


def verify_repository(run, found, results):
    """Files of a repository of backups have their SHA-256 as names, as restic's documentation of its format says; no lock is left."""
    files = {p: v[1] for p, v in found.items() if v and p.startswith(run.repository)}
    wrong = [p for p, digest in files.items() if p.rsplit("/", 1)[1] not in (digest, "config")]
    wrong += [p for p in files if p.startswith(run.repository + "locks/")]
    if not any(p.startswith(run.repository + "data/") for p in files):
        wrong.append("no data")
    if wrong:
        results.add(run.client.name, run.kind, "backup.save", "FAIL", f"on the server at the end: {len(wrong)} of {len(files)} wrong, {wrong[0]}")


def template(work, names):
    """What lies on every share before the clients come."""
    top = f"{work}/template"
    os.makedirs(f"{top}/many")
    for name in checks.many_names():
        open(f"{top}/many/{name}", "w").close()
    for client in names:
        for sub in ("one", "two"):
            os.makedirs(f"{top}/{client}/big/{sub}")
            for i in range(checks.BIG // 2):
                open(f"{top}/{client}/big/{sub}/{i}", "w").close()
    return top


def on_server(make, kinds, clients, work, jobs, results, groups):
    os.makedirs(work, exist_ok=True)
    top = template(work, [c.name for c in clients])
    server = make(work, kinds)
    try:
        for kind in kinds:
            server.fill(kind, top)
        if not groups or "logon" in groups:
            wrong_passwords(server, kinds[0], clients, work, results)
        with ThreadPoolExecutor(jobs) as pool:
            work_list = [pool.submit(one_client, c, server, k, work, results, groups) for k in kinds for c in clients]
            runs = [w.result() for w in work_list]
        for run in runs:  # what the template has and nobody removed
            for sub in ("", "one/", "two/"):
                if (run.client.name, run.kind, "folders.remove-all") not in results.rows or \
                        results.rows[run.client.name, run.kind, "folders.remove-all"][0] != "ok":
                    run.uncertain |= {"big/", "big/one/", "big/two/"} | {f"big/{s}/{i}" for s in ("one", "two") for i in range(checks.BIG)}
        if "ca" in kinds and (not groups or "restart" in groups):
            restart_phase([r for r in runs if r.kind == "ca"], server, results)
        for kind in kinds:
            server.check(kind)
        server.stop()
        for run in runs:
            if server.directory(run.kind) is None:
                read_without_daemon(run, server, results)
        if server.name == "arden":
            server.start()
        for run in runs:
            verify(run, server, results)
        server.stop()
    finally:
        server.abort()


def expected_failures():
    """(client, kind, check patterns, may pass, reason): `!` before the client says that it fails in some runs only."""
    rows = []
    with open(f"{HERE}/expected.txt") as f:
        for line in f:
            line = line.split("#")[0].strip()
            if line:
                client, kind, name, reason = line.split(None, 3)
                rows.append((client.lstrip("!"), kind, name, client.startswith("!"), reason))
    return rows


def judge(results):
    """Compares with expected.txt; returns whether all is as it says, and the reasons of failures."""
    expected, wrong, reasons, used = expected_failures(), [], {}, set()
    for key, (status, detail) in sorted(results.rows.items()):
        rule = next((r for r in expected if all(fnmatchcase(k, p) for k, p in zip(key, r[:3]))), None)
        if status == "FAIL" and rule:
            reasons[key] = rule[4]
            used.add(rule)
        elif status == "FAIL":
            wrong.append(f"unexpected failure: {' '.join(key)}: {detail}")
        elif rule and status == "ok" and not rule[3] and "*" not in "".join(rule[:3]) and "[" not in "".join(rule[:3]):
            wrong.append(f"passes, but is expected to fail: {' '.join(key)}")
    ran = {(c, k) for c, k, _ in results.rows}
    for r in expected:
        if r not in used and not r[3] and any(fnmatchcase(c, r[0]) and fnmatchcase(k, r[1]) for c, k in ran) \
                and any(fnmatchcase(key[2], r[2]) for key in results.rows) and ("*" in "".join(r[:3])):
            wrong.append(f"nothing fails of: {' '.join(r[:3])}")
    return wrong, reasons


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--work")
    p.add_argument("--server", default="arden", choices=["arden", "samba", "both"])
    p.add_argument("--kinds", default="dir,volume,ca")
    p.add_argument("--clients")
    p.add_argument("--quick", action="store_true", help="without clients that are slow to build or to run")
    p.add_argument("--checks")
    p.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 2))
    p.add_argument("--docs")
    args = p.parse_args()
    work = args.work or tempfile.mkdtemp(prefix="arden-clients.")
    wanted = args.clients.split(",") if args.clients else [n for n, c in CLIENTS.items() if not (args.quick and c.slow)]
    clients, skipped, results = [], {}, Results()
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, started in [(n, pool.submit(CLIENTS[n].prepare)) for n in wanted]:
            try:
                if reason := started.result():
                    skipped[name] = reason
                else:
                    clients.append(CLIENTS[name])
            except Exception as e:
                results.add(name, "-", "build", "FAIL", str(e)[-2000:])
    groups = args.checks and args.checks.split(",")
    if args.server != "samba":
        on_server(servers.Arden, args.kinds.split(","), clients, f"{work}/arden", args.jobs, results, groups)
    if args.server != "arden":
        on_server(servers.Samba, ["samba"], clients, f"{work}/samba", args.jobs, results, groups)
    wrong, reasons = judge(results)
    with open(f"{work}/results.json", "w") as f:
        json.dump([[*k, *v] for k, v in sorted(results.rows.items())], f, indent=1)
    if args.docs:
        page.write(args.docs, list(CLIENTS), clients, skipped, results.rows, reasons)
    count = lambda s: sum(v[0] == s for v in results.rows.values())
    for name, reason in skipped.items():
        print(f"skipped  {name}: {reason}")
    print("\n".join(wrong))
    print(f"{len(clients)} clients, {len(skipped)} skipped; {count('ok')} checks passed, {count('FAIL')} failed ({len(reasons)} as expected), "
          f"{count('na')} not offered by the client; logs: {work}")
    return bool(wrong) or (77 if not clients else 0)


if __name__ == "__main__":
    sys.exit(main())
