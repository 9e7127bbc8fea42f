"""The far end of one ssh connection: looks at this checkout, or runs one command, and ends with the connection.

Reads one JSON job from standard input, writes JSON lines to standard output. A closed standard input (the controller
stopped, or the connection broke) and the job's own time limit both end the command and everything it started. The
command's temporary folder `{dir}` comes back as text and is removed. Standard library only.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 15
ARTEFACTS = ("fakegpu/lib/libfakegpu_rt.so", "fakegpu/lib/libnccl.so.2", "fakegpu/lib/libcudart.so.13")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count())"


def say(**what) -> None:
    print(json.dumps(what), flush=True)


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def preflight(with_torch: bool) -> dict:
    """What the controller compares before it starts anything."""
    native = list((ROOT / "fakegpu" / "_core").glob("wire*.so"))
    missing = [name for name in ARTEFACTS if not (ROOT / name).exists()] + ([] if native else ["fakegpu/_core/wire*.so"])
    torch, cuda, devices = (output(sys.executable, "-c", _TORCH if with_torch else "").split() + ["", "", ""])[:3]
    return {
        "commit": output("git", "rev-parse", "HEAD"),
        "changed": output("git", "status", "--porcelain", "--untracked-files=no").splitlines(),
        "python": sys.version.split()[0],
        "torch": torch,
        "cuda": cuda,
        "real_devices": int(devices or 0),
        "host": os.uname().nodename,
        "missing": missing,
    }


def orphans() -> list[int]:
    """Processes whose parent is this one: after the command ended, what it left behind."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def end_orphans() -> None:
    """Kill and reap them, sessions of their own included; theirs become ours, so until there are none."""
    while True:
        for pid in orphans():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Command:
    """One command in a session of its own, ended with all it started."""

    def __init__(self, job: dict) -> None:
        self.folder = tempfile.mkdtemp(prefix="fakegpu-multihost-")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKEGPU_")}
        environment = kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | job["environment"]
        argv = [word.replace("{python}", sys.executable).replace("{dir}", self.folder) for word in job["argv"]]
        self.process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.why = ""

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, why: str) -> None:
        if self.process.poll() is None:
            self.why = self.why or why
            self.signal(signal.SIGTERM)
            killer = threading.Timer(GRACE_SECONDS, self.signal, (signal.SIGKILL,))
            killer.daemon = True
            killer.start()

    def files(self) -> dict:
        found = {}
        for path in sorted(Path(self.folder).iterdir()):
            if path.is_file() and path.stat().st_size < 64 << 20:
                found[path.name] = path.read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(self.folder, ignore_errors=True)
        return found


def run(job: dict) -> None:
    command = Command(job)
    limit = threading.Timer(job["seconds"], command.end, ("time limit",))
    limit.daemon = True
    limit.start()
    threading.Thread(target=lambda: (sys.stdin.read(), command.end("stopped")), daemon=True).start()
    for line in command.process.stdout:
        say(line=line.rstrip("\n"))
    status = command.process.wait()
    end_orphans()
    say(status=status, why=command.why, files=command.files())


def main() -> None:
    job = json.loads(sys.stdin.readline())
    if job["do"] == "preflight":
        say(preflight=preflight(job["torch"]))
    else:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives its parent becomes our child
        run(job)
    sys.stdout.flush()
    os._exit(0)  # a thread may still wait for standard input


if __name__ == "__main__":
    main()
