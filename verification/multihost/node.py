"""A node given as 'name=..;ssh=..;repo=..;python=..;shell=posix|wsl', and one job on it through ssh.

A job is sent on standard input of verification/multihost/agent.py over there, so nothing secret is on a command line;
closing that input ends the job. Nothing is copied and nothing is changed in the node's repository.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

AGENT = "verification/multihost/agent.py"
KEYS = ("name", "ssh", "repo", "python", "shell")
BROKEN = 255  # ssh's own status


@dataclass(frozen=True)
class Node:
    """Where one rank runs."""

    name: str
    ssh: str
    repo: str
    python: str
    shell: str = "posix"

    @classmethod
    def parse(cls, text: str) -> Node:
        """argparse's type: one clear line about what is wrong."""
        items = dict(item.partition("=")[::2] for item in text.strip(";").split(";"))
        unknown, missing = sorted(set(items) - set(KEYS)), [key for key in KEYS[:4] if not items.get(key)]
        if unknown or missing:
            wrong = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
            raise argparse.ArgumentTypeError(f"{text!r}: {wrong}; expected 'name=..;ssh=..;repo=..;python=..;shell=posix|wsl'")
        node = cls(**items)
        if node.shell not in ("posix", "wsl"):
            raise argparse.ArgumentTypeError(f"{text!r}: shell={node.shell}, expected posix or wsl")
        if not node.repo.startswith("/") or node.ssh.startswith("-"):
            raise argparse.ArgumentTypeError(f"{text!r}: expected an absolute repo and an ssh destination")
        if node.shell == "wsl" and set(node.repo + node.python) & set("\"'`$\\ %"):
            raise argparse.ArgumentTypeError(f"{text!r}: repo and python must have no blanks or quotes with shell=wsl")
        return node

    def command(self, ssh: list[str]) -> list[str]:
        """ssh with the agent's start; the Windows shell in front of WSL passes double quotes only."""
        inner = f"cd {shlex.quote(self.repo)} && exec {shlex.quote(self.python)} {AGENT}"
        remote = f"sh -c {shlex.quote(inner)}" if self.shell == "posix" else f'wsl.exe -e sh -c "{inner}"'
        return [*ssh, self.ssh, remote]


@dataclass
class Job:
    """A running job on a node. `lines` is what it printed so far; `status` is None until it ended."""

    node: Node
    process: subprocess.Popen
    lines: list[str] = field(default_factory=list)
    status: int | None = None
    why: str = ""
    files: dict[str, str] = field(default_factory=dict)
    preflight: dict | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def read(self) -> None:
        """The reader thread: until ssh ends, whatever the reason."""
        for text in self.process.stdout:
            with self.changed:
                try:
                    self.take(json.loads(text))
                except (ValueError, TypeError, AttributeError):
                    self.lines.append(text.rstrip("\n"))  # the login shell or ssh itself speaks
                self.changed.notify_all()
        code = self.process.wait()
        with self.changed:
            self.ended = True
            if self.status is None and self.preflight is None:
                said = f": {self.lines[-1]}" if self.lines else ""
                how = "the ssh connection failed or broke" if code == BROKEN else f"the agent did not answer (status {code})"
                self.why = self.why or f"node {self.node.name} ({self.node.ssh}): {how}{said}"
            self.changed.notify_all()

    def take(self, message: dict) -> None:
        if "line" in message:
            self.lines.append(message["line"])
        elif "preflight" in message:
            self.preflight = message["preflight"]
        else:
            self.status, self.why, self.files = message["status"], message["why"], message["files"]

    def wait(self, seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.ended, seconds)

    def wait_line(self, part: str, seconds: float) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.ended or any(part in line for line in self.lines), seconds)
            return any(part in line for line in self.lines)

    def stop(self) -> None:
        """Ask the agent to end the command; it still answers with its files."""
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def kill(self) -> None:
        self.stop()
        self.process.kill()
        self.process.wait()


class Hosts:
    """Starts jobs; knows all of them, so that nothing outlives the controller."""

    def __init__(self, ssh: str, connect_seconds: int, uninterrupted: Callable[[], AbstractContextManager]) -> None:
        self.uninterrupted = uninterrupted
        self.ssh = [
            *shlex.split(ssh), "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_seconds}",
            "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
        ]  # fmt: skip
        self.jobs: list[Job] = []

    def start(self, node: Node, message: dict) -> Job:
        with self.uninterrupted():
            process = subprocess.Popen(node.command(self.ssh), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, start_new_session=True)
            job = Job(node, process)
            self.jobs.append(job)
            try:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # ssh ended at once; the reader says why
            threading.Thread(target=job.read, daemon=True).start()
        return job

    def run(self, node: Node, argv: list[str], environment: dict[str, str], seconds: float) -> Job:
        return self.start(node, {"do": "run", "argv": argv, "environment": environment, "seconds": seconds})

    def stop_all(self, seconds: float = 20) -> None:
        """End every job; ssh itself is killed only where nothing answers."""
        running = [job for job in self.jobs if not job.ended]
        for job in running:
            job.stop()
        deadline = time.monotonic() + seconds
        for job in running:
            if not job.wait(max(deadline - time.monotonic(), 0)):
                job.kill()
        self.jobs.clear()
