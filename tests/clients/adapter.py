"""The Python side of an adapter: requests as JSON lines on standard input, answers on standard output (docs/clients.md).
An adapter subclasses Adapter and defines a method for each operation that its client's API offers."""
import json, os, sys, traceback
from concurrent.futures import ThreadPoolExecutor


class NotOffered(Exception):
    """The client's API has no such operation."""


class Adapter:
    def list(self, **_): raise NotOffered("no listing of folders")
    def stat(self, **_): raise NotOffered("no reading of attributes")
    def write_at(self, **_): raise NotOffered("no writing in the middle of a file")
    def truncate(self, **_): raise NotOffered("no setting of a file's length")
    def rename(self, **_): raise NotOffered("no renaming")
    def remove_all(self, **_): raise NotOffered("no recursive removal")
    def set_time(self, **_): raise NotOffered("no setting of times")
    def set_attributes(self, **_): raise NotOffered("no setting of attributes")
    def symlink(self, **_): raise NotOffered("no symbolic links")
    def readlink(self, **_): raise NotOffered("no symbolic links")
    def space(self, **_): raise NotOffered("no query of free space")
    def shares(self, **_): raise NotOffered("no enumeration of shares")
    def acl(self, **_): raise NotOffered("no reading of ACLs")
    def too_small(self, **_): raise NotOffered("no choice of a buffer's size")
    def backup_init(self, **_): raise NotOffered("no backups")
    def version(self, **_): return {"version": "?"}

    def parallel(self, puts, gets):
        """Transfers at the same time, each in a thread: [[local, path]...], [[path, local]...]."""
        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(self.put, local=a, path=b) for a, b in puts]
            work += [pool.submit(self.get, path=a, local=b) for a, b in gets]
            for w in work:
                w.result()

    def one_by_one(self, puts, gets):
        """The transfers of `parallel`, for clients that one thread at a time may use."""
        for a, b in puts:
            self.put(a, b)
        for a, b in gets:
            self.get(a, b)


def serve(adapter):
    """Answers requests until standard input ends. What a library prints goes to standard error."""
    # Where a program started this one over others that print, their output is apart already.
    answers = os.fdopen(int(os.environ.get("ARDEN_ANSWERS_FD") or os.dup(1)), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        try:
            answer = getattr(adapter, op)(**request) or {}
        except NotOffered as e:
            answer = {"na": str(e)}
        except Exception as e:
            traceback.print_exc()
            answer = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)
