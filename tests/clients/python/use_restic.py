"""restic, which reaches SMB by `rclone serve restic` over pipes: backups alone, no files by name."""
import json, os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from adapter import Adapter, NotOffered, serve

SECRET = "the key of the test's backups"


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise OSError(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


class Restic(Adapter):
    def connect(self, host, port, user, password, share, encrypt):
        secret = run(["rclone", "obscure", password]).strip()
        self.top = f":smb,host={host},port={port},user={user},pass={secret}:{share}/"
        run(["rclone", "--config", "/dev/null", "--retries", "1", "--low-level-retries", "1", "lsf", self.top, "--max-depth", "1", "--files-only"])

    def put(self, **_): raise NotOffered("files by name: a store of backups")
    get = mkdir = rmdir = delete = put

    def restic(self, repository, *args, **more):
        env = {**os.environ, "RESTIC_PASSWORD": SECRET, "RCLONE_CONFIG": "/dev/null"}
        # Without a cache on this machine: what is read comes from the share.
        return run(["restic", "--no-cache", "-q", "-r", f"rclone:{self.top}{repository}", *args], env=env, **more)

    def backup_init(self, repository):
        self.restic(repository, "init")

    def backup(self, repository, tree):
        self.restic(repository, "backup", ".", cwd=tree)

    def backup_check(self, repository):
        """Every byte of the repository is read, and compared with its name and keys."""
        self.restic(repository, "check", "--read-data")

    def backup_restore(self, repository, to, read_only=False):
        self.restic(repository, *(["--no-lock"] if read_only else []), "restore", "latest", "--target", to)

    def backup_forget(self, repository):
        """All snapshots but the last, and what only they need."""
        self.restic(repository, "forget", "--keep-last", "1", "--group-by", "", "--prune")

    def backup_unlock(self, repository):
        """Removes the locks of processes of this machine that are gone."""
        self.restic(repository, "unlock")

    def backup_snapshots(self, repository):
        return {"count": len(json.loads(self.restic(repository, "snapshots", "--json")))}


if len(sys.argv) > 1:
    print(run(["restic", "version"]).split()[1] + ", rclone " + run(["rclone", "version"]).split()[1])
else:
    serve(Restic())
