"""Named checks that go on when one fails, for the Python clients beside this file."""
import os, time, traceback

failures = []


def check(name):
    def wrap(f):
        started = time.time()
        try:
            f()
            print(f"ok   {name} ({time.time() - started:.1f} s)", flush=True)
        except Exception as e:
            failures.append(name)
            print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
            traceback.print_exc()
    return wrap


def finish(whose):
    """Ends the process, threads of libraries too."""
    print(f"{len(failures)} of {whose}'s checks failed{': ' + ', '.join(failures) if failures else ''}", flush=True)
    os._exit(1 if failures else 0)
