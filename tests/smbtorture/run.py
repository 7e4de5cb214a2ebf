#!/usr/bin/env python3
"""Runs every smb2 suite of smbtorture against a server and holds the results against a list.

    run.py --address 127.0.0.1 --port P --user U --password PW --share NAME=DIR [--share NAME2=DIR2 ...]
           [--suite smb2.lock ...] [--expected FILE ...] [--compare FILE] [--results FILE] [--workers N]
           [--smbtorture PROGRAM] [--than OLDER_PROGRAM]: with the latter, only the tests that the older one does not have

Each suite runs by itself, with a limit for its time. When one hangs or its process dies, the test that did
it counts as failed and the rest of the suite goes on, test by test. Several suites run at once, each worker
on a share of its own, because most of their time is waiting.

The list (one `suite.test  reason` a line) names the tests that are known to fail. A failure that it does not
name fails the run; so does a success of a test that it names. What would fail the run is run again, alone, up to
twice: only what stays so counts. A reason that begins with `sometimes` allows both. Skipped tests fail nothing.
"""
import argparse, collections, os, queue, re, shutil, signal, subprocess, sys, tempfile, threading, time

# Need a person at the keyboard, or hold something open for minutes and test nothing.
NOT_RUN = {
    "smb2.hold-oplock": "holds an oplock for five minutes for a person to look at",
    "smb2.hold-sharemode": "holds opens for five minutes for a person to look at",
    "smb2.aio_delay": "wants a server module of Samba's that delays I/O",
    "smb2.change_notify_disabled": "wants a server that has change notification switched off",
}
# The rest takes seconds; these wait for break and durable time-outs of the protocol.
LIMIT_SUITE, LIMIT_TEST = 150, 75
LIMITS = {"smb2.scan": 40, "smb2.replay": 600, "smb2.lease": 400, "smb2.dirlease": 300, "smb2.oplock": 400, "smb2.multichannel": 500, "smb2.session": 400,
          "smb2.durable-v2-open": 300, "smb2.durable-open": 300, "smb2.kernel-oplocks": 200, "smb2.notify": 200}
# What some suites have to be told. `testfile` is made by the runner.
OPTIONS = {"smb2.set-sparse-ioctl": ["torture:filename=testfile"],
           # Whether the last of a compound is told that it waits, as Samba does it.
           "smb2.compound_async": ["torture:smbd=no"],
           "smb2.zero-data-ioctl": ["torture:filename=testfile", "torture:offset=1000", "torture:beyond_final_zero=3000"]}
# These tests cut connections with packet filters of this machine; without --iptables they count as skipped.
NEEDS_IPTABLES = re.compile("could not block tcp transport|test_block_smb2_transport")
RESULT = re.compile(r"^(success|failure|error|skip|xfail|uxsuccess): (.+?)(?: \[.*)?$")


def listed(smbtorture):
    out = subprocess.run([smbtorture, "--list"], capture_output=True, text=True).stdout
    suites = collections.OrderedDict()
    for name in map(str.strip, out.splitlines()):
        if name.startswith("smb2."):
            suites.setdefault(suite_of(name), []).append(name)
    return suites


def newer(suites, older):
    """The tests that an older smbtorture does not have."""
    had = {test for tests in listed(older).values() for test in tests}
    left = {suite: [t for t in tests if t not in had] for suite, tests in suites.items()}
    return collections.OrderedDict((suite, tests) for suite, tests in left.items() if tests)


def suite_of(test):
    return ".".join(test.split(".")[:2])


class Runner:
    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.results = {}  # suite -> OrderedDict(test -> (outcome, text))
        self.seconds = {}
        self.folder = tempfile.TemporaryDirectory()

    def smbtorture(self, share, names, limit):
        """(outcomes by test, the test under way when it ended early, whole output)."""
        a = self.args
        other = a.shares[1][0] if len(a.shares) > 1 else share
        command = [a.smbtorture, f"//{a.address}/{share}", "-p", str(a.port), "-U", f"{a.user}%{a.password}",
                   "--target=samba3", f"--option=torture:share2={other}", "--option=torture:writetimeupdatedelay=500000",
                   *a.option, *(f"--option={o}" for o in OPTIONS.get(suite_of(names[0]), [])),
                   *(["--option=torture:use_iptables=yes"] if a.iptables else []), *names]
        # It leaves folders where it runs.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True, cwd=self.folder.name)
        timer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.start()
        outcomes, running, lines, current = collections.OrderedDict(), None, [], []
        for line in process.stdout:
            line = line.rstrip("\n")
            if line.startswith("time: "):
                continue
            lines.append(line)
            if line.startswith("test: "):
                running, current = line[6:], []
            elif m := RESULT.match(line):
                outcomes[m[2]] = [m[1], ""]
                current, running, last = [], None, m[2]
            elif line == "]" and outcomes and running is None:
                outcomes[last][1] = " / ".join(current)[:300]
            else:
                current.append(line)
        process.wait()
        timer.cancel()
        return outcomes, running, process.returncode, lines

    def suite(self, share, directory, suite, tests):
        started, done = time.time(), collections.OrderedDict()
        wipe(directory)
        self.prepare(suite, share)
        outcomes, running, code, lines = self.smbtorture(share, tests if self.args.than else [suite], LIMITS.get(suite, LIMIT_SUITE))
        done.update({k: tuple(v) for k, v in outcomes.items()})
        missing = [t for t in tests if not any(t.endswith(f".{d}") for d in done)]
        if running is not None and running not in done:
            done[running] = ("failure", f"did not end ({'killed after its time' if code < 0 else f'exit {code}'})")
        # A process that died takes the rest of its suite with it: run that by itself.
        if running is not None and len(tests) > 1:
            for test in missing:
                if test.endswith(f".{running}"):
                    continue
                wipe(directory)
                one, under_way, code, _ = self.smbtorture(share, [test], LIMIT_TEST)
                done.update({k: tuple(v) for k, v in one.items()} or
                            {under_way or test.split(".")[-1]: ("failure", f"did not end (exit {code})")})
        for test, (outcome, text) in done.items():
            if outcome == "failure" and not self.args.iptables and NEEDS_IPTABLES.search(text):
                done[test] = ("skip", "needs iptables")
        with self.lock:
            self.results[suite] = done
            self.seconds[suite] = time.time() - started
            if self.args.logs:
                with open(os.path.join(self.args.logs, suite + ".log"), "w") as f:
                    f.write("\n".join(lines))
            passed = sum(o == "success" for o, _ in done.values())
            print(f"  {suite}: {passed}/{ran(done)} in {self.seconds[suite]:.0f} s", file=sys.stderr, flush=True)

    def again(self, suites, expected):
        """Runs what is unexpected once more, alone, on the first worker's share."""
        share, directory = self.args.shares[0]
        for attempt in (1, 2):
            for suite, done in self.results.items():
                for test, (outcome, _) in list(done.items()):
                    name = f"{suite}.{test}"
                    if expected.get(name, "").startswith("sometimes") or not is_unexpected(name, outcome, expected):
                        continue
                    target = next((t for t in suites[suite] if t.endswith(f".{test}")), suite)
                    wipe(directory)
                    self.prepare(suite, share)
                    one = self.smbtorture(share, [target], LIMIT_TEST)[0]
                    got = one.get(test)
                    print(f"  again {name}: {outcome} -> {got[0] if got else 'did not end'}", file=sys.stderr, flush=True)
                    if got:
                        done[test] = tuple(got)

    def prepare(self, suite, share):
        if suite in OPTIONS:
            a = self.args
            subprocess.run(["smbclient", f"//{a.address}/{share}", "-p", str(a.port), "-U", f"{a.user}%{a.password}",
                            "-c", f"put {__file__} testfile"], capture_output=True)

    def run(self, suites):
        # The longest first, so that they do not end the run alone.
        work = queue.Queue()
        for suite in sorted(suites, key=lambda s: -LIMITS.get(s, 0)):
            work.put(suite)

        def worker(share, directory):
            while True:
                try:
                    suite = work.get_nowait()
                except queue.Empty:
                    return
                try:
                    self.suite(share, directory, suite, suites[suite])
                except Exception as e:  # never lose a suite silently
                    with self.lock:
                        self.results[suite] = {t.removeprefix(suite + "."): ("failure", f"the runner failed: {e}") for t in suites[suite]}

        workers = self.args.shares[: self.args.workers]
        threads = [threading.Thread(target=worker, args=pair) for pair in workers]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def wipe(directory):
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            try:
                os.unlink(entry.path)
            except OSError:
                pass


def is_unexpected(name, outcome, expected):
    if expected.get(name, "").startswith("sometimes"):
        return False
    return (outcome in ("failure", "error")) != (name in expected) and outcome != "skip"


def ran(done):
    return sum(o != "skip" for o, _ in done.values())


def read_expected(paths):
    out = {}
    for path in paths:
        for line in open(path):
            line = line.split("#")[0].strip()
            if line:
                # Some tests' names have spaces: two or more of them end the name.
                name, reason = (re.split(r"\s{2,}", line, maxsplit=1) + [""])[:2]
                if not reason.strip():
                    sys.exit(f"{path}: {name} has no reason")
                out[name] = reason.strip()
    return out


def read_compare(path):
    out = {}
    if path and os.path.exists(path):
        for line in open(path):
            parts = line.split()
            if len(parts) == 2 and "/" in parts[1]:
                out[parts[0]] = tuple(map(int, parts[1].split("/")))
    return out


def table(results, compare):
    lines, below = [f"{'suite':32} {'Arden':>9} {'Samba 4.17':>11}"], []
    total = [0, 0, 0, 0]
    for suite in sorted(results):
        done = results[suite]
        passed, of = sum(o == "success" for o, _ in done.values()), ran(done)
        theirs = compare.get(suite.removeprefix("smb2."))
        mark = ""
        if theirs and passed < theirs[0]:
            mark, _ = "  below", below.append(suite)
        lines.append(f"{suite:32} {f'{passed}/{of}':>9} {'/'.join(map(str, theirs)) if theirs else '-':>11}{mark}")
        total[0] += passed
        total[1] += of
        if theirs:
            total[2] += theirs[0]
            total[3] += theirs[1]
    lines.append(f"{'all':32} {f'{total[0]}/{total[1]}':>9} {f'{total[2]}/{total[3]}':>11}")
    return lines, below


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--address", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--user", required=True)
    p.add_argument("--password", required=True)
    p.add_argument("--share", action="append", required=True, help="NAME=DIR, one for each worker")
    p.add_argument("--suite", action="append", default=[])
    p.add_argument("--option", action="append", default=[])
    p.add_argument("--expected", action="append", default=[])
    p.add_argument("--compare")
    p.add_argument("--results")
    p.add_argument("--logs")
    p.add_argument("--iptables", action="store_true")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--smbtorture", default="smbtorture")
    p.add_argument("--than")
    args = p.parse_args()
    args.shares = [tuple(s.split("=", 1)) for s in args.share]
    if args.logs:
        os.makedirs(args.logs, exist_ok=True)
    suites = listed(args.smbtorture)
    if args.than:
        suites = newer(suites, args.than)
    if args.suite:
        suites = collections.OrderedDict((s, suites[s]) for s in args.suite)
    else:
        for name in NOT_RUN:
            suites.pop(name, None)
    runner = Runner(args)
    started = time.time()
    expected, compare = read_expected(args.expected), read_compare(args.compare)
    runner.run(suites)
    runner.again(suites, expected)
    results = runner.results
    if args.results:
        with open(args.results, "w") as f:
            for suite in sorted(results):
                for test, (outcome, text) in results[suite].items():
                    f.write(f"{outcome} {suite}.{test} {text}\n")

    unexpected, fixed = [], []
    for suite in sorted(results):
        for test, (outcome, text) in results[suite].items():
            name = f"{suite}.{test}"
            if is_unexpected(name, outcome, expected):
                unexpected.append((name, text)) if outcome != "success" else fixed.append(name)
    lines, below = table(results, compare)
    print("\n".join(lines))
    for name, text in unexpected:
        print(f"unexpected failure: {name}\n    {text}")
    for name in fixed:
        print(f"unexpected success: {name}: take it off the list")
    if below:
        print(f"below Samba 4.17: {' '.join(below)}")
    print(f"{len(unexpected)} unexpected failures, {len(fixed)} unexpected successes, {time.time() - started:.0f} s")
    sys.exit(1 if unexpected or fixed else 0)


main()
