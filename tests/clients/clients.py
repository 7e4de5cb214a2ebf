"""The clients: how each is built, started and named, and what it lacks. `prepare` installs nothing by itself but what registries have;
Debian packages come from scripts/packages."""
import json, os, re, shutil, subprocess, threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(f"{HERE}/../..")
OUT = f"{ROOT}/target/clients"


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


class Client:
    reads_error_data = False

    def __init__(self, name, what, encrypts=True, op_seconds=60, slow=False):
        """`slow`: to build or to run, and left out by --quick."""
        self.name, self.what, self.encrypts, self.op_seconds, self.slow = name, what, encrypts, op_seconds, slow
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


class Libsmb2(Python):
    def prepare(self):
        if not shutil.which("cc"):
            return "there is no C compiler"
        got = run([f"{ROOT}/tests/downloads", "libsmb2"])
        if got.returncode:
            return f"its source is not to be had: {got.stderr[-200:]}"
        os.environ["LIBSMB2"] = got.stdout.strip()
        return super().prepare()


class Go(Client):
    """A program of the module in go/, one folder for each library. The library is a copy with too_small.go.in beside its own files."""
    reads_error_data = True

    def prepare(self):
        go = shutil.which("go")
        if not go:
            got = run([f"{ROOT}/tests/downloads", "go"])
            if got.returncode:
                return f"there is no Go toolchain, nor is one to be had: {got.stderr[-200:]}"
            go = got.stdout.strip() + "/bin/go"
        os.makedirs(OUT, exist_ok=True)
        self.program = f"{OUT}/{self.name}"
        env = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "auto"}
        module = self.what.split()[0]
        got = run([go, "mod", "download", "-json", module], cwd=f"{HERE}/go", env=env)
        if got.returncode:
            raise RuntimeError(f"go mod download: {got.stdout[-500:]}{got.stderr}")
        found = json.loads(got.stdout)
        self.version = found["Version"]
        got = run([go, "build", f"-modfile={self.with_more(module, found['Dir'])}", "-o", self.program, f"./{self.name}"], cwd=f"{HERE}/go", env=env)
        if got.returncode:
            raise RuntimeError(f"go build: {got.stderr}")
        return None

    def with_more(self, module, source):
        """A copy of the library with one more file, and a go.mod that names it."""
        at = f"{OUT}/go-{self.name}"
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(source, at, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(at):
            os.chmod(folder, 0o755)
        with open(f"{HERE}/go/too_small.go.in") as f, open(f"{at}/too_small.go", "w") as to:
            to.write(f.read().replace("MODULE", module))
        with open(f"{HERE}/go/go.mod") as f, open(f"{at}.mod", "w") as to:
            to.write(f"{f.read()}\nreplace {module} => {at}\n")
        shutil.copy(f"{HERE}/go/go.sum", f"{at}.sum")
        return f"{at}.mod"

    def command(self, server, work):
        return [self.program]


class Rust(Client):
    """A program of the Cargo project in rust/, which is no part of the workspace."""

    def __init__(self, name, what, crate):
        super().__init__(name, what, slow=True)
        self.crate = crate

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


class Java(Client):
    """A class of the Maven project in java/."""
    built = threading.Lock()

    def prepare(self):
        for program in ("javac", "mvn"):
            if not shutil.which(program):
                return f"there is no {program}"
        with Java.built:
            if not os.path.exists(f"{OUT}/java/classpath") or os.path.getmtime(f"{OUT}/java/classpath") < os.path.getmtime(f"{HERE}/java/pom.xml"):
                goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={OUT}/java/classpath"]
            else:
                goals = ["-o", "compile"]
            got = run(["mvn", "-q", "-B", f"-Dout={OUT}/java", *goals], cwd=f"{HERE}/java")
            if got.returncode:
                raise RuntimeError(f"mvn: {got.stdout[-2000:]}")
        with open(f"{OUT}/java/classpath") as f:
            self.classpath = f"{OUT}/java/classes:{f.read().strip()}"
        self.version = re.search(rf"/{self.name}-([\d.]+)\.jar", self.classpath)[1]
        return None

    def command(self, server, work):
        return ["java", "-XX:TieredStopAtLevel=1", "-cp", self.classpath, "matrix.Adapter", self.name]


class CSharp(Client):
    """The program csharp/Adapter.cs, built and run by Mono. SMBLIBRARY names the library where it is not to be fetched."""

    def prepare(self):
        for program in ("mcs", "mono"):
            if not shutil.which(program):
                return f"there is no {program}"
        library = os.environ.get("SMBLIBRARY")
        if not library:
            got = run([f"{ROOT}/tests/downloads", "smblibrary"])
            if got.returncode:
                return f"the library is not to be had: {got.stderr[-200:]}"
            library = f"{got.stdout.strip()}/SMBLibrary.dll"
        self.at = f"{OUT}/csharp"
        os.makedirs(self.at, exist_ok=True)
        shutil.copy(library, f"{self.at}/SMBLibrary.dll")
        references = ["System.Core", "System.Runtime.Serialization", "System.Xml", "System.Xml.Linq", f"{self.at}/SMBLibrary.dll"]
        got = run(["mcs", f"-out:{self.at}/adapter.exe", *(f"-r:{r}" for r in references), f"{HERE}/csharp/Adapter.cs"])
        if got.returncode:
            raise RuntimeError(f"mcs: {got.stdout}{got.stderr}")
        known = f"{os.path.dirname(library)}/version"
        self.version = open(known).read().strip() if os.path.exists(known) else "of SMBLIBRARY"
        return None

    def command(self, server, work):
        return ["mono", f"{self.at}/adapter.exe"]


CLIENTS = {c.name: c for c in [
    Python("pysmb", "pysmb (Python)", "use_pysmb.py", encrypts=False),
    Python("libsmbclient", "libsmbclient (C, called by ctypes)", "use_smbc.py", system=True),
    Libsmb2("libsmb2", "libsmb2 (C, called by ctypes)", "use_libsmb2.py", system=True),
    Python("smbclient", "smbclient (Samba)", "use_smbclient.py", needs=["smbclient"], system=True),
    Python("smbprotocol", "smbprotocol (Python)", "use_smbprotocol.py"),
    Python("impacket", "impacket (Python)", "use_impacket.py", op_seconds=240, slow=True),
    Python("rclone", "rclone (Go, with hirochachacha/go-smb2), Debian's", "use_rclone.py", needs=["rclone"], system=True),
    Python("restic", "restic, by rclone's backend smb, both Debian's", "use_restic.py", needs=["restic", "rclone"], system=True, op_seconds=240,
           slow=True),
    Python("gvfs", "gvfs by gio, Debian's", "use_gio.py", needs=["gio", "dbus-run-session"], system=True),
    CSharp("smblibrary", "SMBLibrary (C#), on Mono", slow=True),
    Java("smbj", "smbj (Java)"),
    Java("jcifs-ng", "jcifs-ng (Java)", encrypts=False),
    Go("go-smb2", "github.com/hirochachacha/go-smb2 (Go)"),
    Go("cloudsoda", "github.com/cloudsoda/go-smb2 (Go)"),
    Rust("smb2-rs", "the crate smb2 (Rust)", "smb2"),
    Rust("smb-rs", "the crate smb (Rust)", "smb"),
]}
