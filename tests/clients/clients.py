"""The clients: how each is built, started and named, and what it lacks. `prepare` installs nothing by itself but what registries have;
Debian packages come from scripts/packages."""
import os, shutil, subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(f"{HERE}/../..")
OUT = f"{ROOT}/target/clients"


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


class Client:
    slow_to_build = False

    def __init__(self, name, what, encrypts=True):
        self.name, self.what, self.encrypts = name, what, encrypts
        self.version = ""

    def prepare(self):
        """Builds what is needed. Returns why the client is skipped, or None."""
        raise NotImplementedError

    def command(self, server, work):
        """The program that answers requests."""
        raise NotImplementedError


class Python(Client):
    """An adapter in Python, run by the interpreter of tests/downloads or, for Debian's bindings, by the system's."""

    def __init__(self, name, what, script, needs=(), system=False, **more):
        super().__init__(name, what, **more)
        self.script, self.needs, self.system = script, needs, system

    def prepare(self):
        for program in self.needs:
            if not shutil.which(program):
                return f"there is no {program}"
        self.python = "/usr/bin/python3"
        if not self.system:
            got = run([f"{ROOT}/tests/downloads", "python"])
            if got.returncode:
                return f"no Python environment: {got.stderr[-200:]}"
            self.python = got.stdout.strip() + "/bin/python"
        got = run([self.python, "-B", f"{HERE}/python/{self.script}", "version"])
        if got.returncode:
            return f"does not start: {got.stderr.strip().splitlines()[-1:]}"
        self.version = got.stdout.strip()
        return None

    def command(self, server, work):
        return [self.python, "-B", f"{HERE}/python/{self.script}"]


class Go(Client):
    """A program of the module in go/, one folder for each library."""

    def prepare(self):
        if not shutil.which("go"):
            return "there is no Go toolchain"
        os.makedirs(OUT, exist_ok=True)
        self.program = f"{OUT}/{self.name}"
        got = run(["go", "build", "-o", self.program, f"./{self.name}"], cwd=f"{HERE}/go", env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"})
        if got.returncode:
            raise RuntimeError(f"go build: {got.stderr}")
        self.version = run(["go", "list", "-m", "-f", "{{.Version}}", self.what.split()[0]], cwd=f"{HERE}/go").stdout.strip()
        return None

    def command(self, server, work):
        return [self.program]


class Rust(Client):
    """A program of the Cargo project in rust/, which is no part of the workspace."""

    def __init__(self, name, what, crate, slow_to_build=False):
        super().__init__(name, what)
        self.crate, self.slow_to_build = crate, slow_to_build

    def prepare(self):
        if not shutil.which("cargo"):
            return "there is no Rust toolchain"
        got = run(["cargo", "build", "--locked", "--release", "--features", self.crate, "--bin", self.name, "--target-dir", f"{OUT}/rust"], cwd=f"{HERE}/rust")
        if got.returncode:
            raise RuntimeError(f"cargo build: {got.stderr[-3000:]}")
        self.program = f"{OUT}/rust/release/{self.name}"
        got = run(["cargo", "pkgid", "--locked", "-p", self.crate], cwd=f"{HERE}/rust")
        self.version = got.stdout.strip().split("@")[-1].split("#")[-1]
        return None

    def command(self, server, work):
        return [self.program]


CLIENTS = {c.name: c for c in [
    Python("pysmb", "pysmb (Python)", "use_pysmb.py", encrypts=False),
    Python("libsmbclient", "libsmbclient (C, called by ctypes)", "use_smbc.py", system=True),
    Python("smbclient", "smbclient (Samba)", "use_smbclient.py", needs=["smbclient"], system=True),
    Go("go-smb2", "github.com/hirochachacha/go-smb2 (Go)"),
    Go("cloudsoda", "github.com/cloudsoda/go-smb2 (Go)"),
    Rust("smb2-rs", "the crate smb2 (Rust)", "smb2"),
    Rust("smb-rs", "the crate smb (Rust)", "smb", slow_to_build=True),
]}
