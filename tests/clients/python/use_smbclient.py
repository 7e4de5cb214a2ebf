"""smbclient, a process for each request."""
import os, re, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, serve


class Smbclient(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        self.host, self.base = host, ["-p", str(port), "-U", f"{user}%{password}"] + (["--client-protection=encrypt"] if encrypt else [])
        self.share = share
        self.do("volume")

    def do(self, commands):
        done = subprocess.run(["smbclient", f"//{self.host}/{self.share}", *self.base, "-c", commands], capture_output=True, text=True)
        text = done.stdout + done.stderr
        wrong = re.search(r"NT_STATUS_\w+.*|session setup failed.*|.*[Cc]ommand not found.*", text)
        if wrong or done.returncode:
            raise OSError(wrong[0] if wrong else text[-300:])
        return text

    def put(self, local, path):
        self.do(f'put "{local}" "{self.nt(path)}"')

    def nt(self, path):
        return path.replace("/", "\\")

    def get(self, path, local):
        self.do(f'get "{self.nt(path)}" "{local}"')

    def list(self, path):
        names = []
        for line in self.do(f'ls "{self.nt(path)}\\*"').splitlines():
            found = re.match(r"  (.*?) +([A-Z]*) +(\d+)  \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}$", line)
            if found:
                names.append(found[1])
        return {"names": names}

    def stat(self, path):
        text = self.do(f'allinfo "{self.nt(path)}"')
        size = re.search(r"stream: \[::\$DATA\], (\d+) bytes", text)
        when = re.search(r"write_time: +(.*)", text)[1]
        seconds = subprocess.run(["date", "-d", re.sub(r"^(\w+ +\w+ +\d+ [\d:]+) (AM|PM) (\d+) (\w+)$", r"\1 \2 \4 \3", when), "+%s"], capture_output=True, text=True).stdout
        return {"size": int(size[1]) if size else 0, "directory": bool(re.search(r"attributes: \w*D", text)), "mtime": int(seconds)}

    def mkdir(self, path):
        self.do(f'mkdir "{self.nt(path)}"')

    def rmdir(self, path):
        self.do(f'rmdir "{self.nt(path)}"')

    def delete(self, path):
        self.do(f'del "{self.nt(path)}"')

    def remove_all(self, path):
        self.do(f'deltree "{self.nt(path)}"')

    def rename(self, old, new):
        self.do(f'rename "{self.nt(old)}" "{self.nt(new)}" -f')

    def set_time(self, path, mtime):
        import time
        self.do(f'utimes "{self.nt(path)}" -1 -1 {time.strftime("%Y:%m:%d-%H:%M:%S", time.localtime(mtime))} -1')

    def set_attributes(self, path, hidden):
        self.do(f'setmode "{self.nt(path)}" +h')

    def space(self):
        # Every listing ends with it.
        block = re.search(r"(\d+) blocks of size (\d+)\. (\d+) blocks available", self.do("ls many"))
        return {"total": int(block[1]) * int(block[2]), "free": int(block[3]) * int(block[2])}

    def shares(self):
        done = subprocess.run(["smbclient", "-L", self.host, "-g", *self.base], capture_output=True, text=True)
        return {"names": re.findall(r"^Disk\|(.*?)\|", done.stdout, re.M)}

    def acl(self, path):
        return {"acl": self.do(f'showacls; ls "{self.nt(path)}"')}


if len(sys.argv) > 1:
    print(subprocess.run(["smbclient", "--version"], capture_output=True, text=True).stdout.split()[-1])
else:
    serve(Smbclient())
