"""Runs one command as a child: signals through, exit status through, and nothing it started is left.

Owns fork, exec, the subreaper flag and the signal mask of the launcher. The child is forked before any thread
exists and waits at a gate for its environment: the caller starts its coordinator first, yet never forks with threads.
Called by fakegpu.launch.job; knows nothing of coordinators or environments beyond the one it is handed.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fakegpu.errors import FakeGPUError

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SI_KERNEL = 0x80  # si_code of a signal that the terminal sent to the whole foreground group
PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
WATCHED = PASSED_ON | {signal.SIGCHLD}
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the shells' exit statuses
LINGER_SECONDS = 2.0  # how long what the command started may take to end by itself, and after SIGTERM


class CommandError(FakeGPUError):
    """The command cannot be started; `status` is what a shell would exit with."""

    def __init__(self, text: str, status: int, hint: str = "") -> None:
        super().__init__(text, hint)
        self.status = status


def find_program(name: str, path: str) -> str:
    """The file a shell would run for `name`; CommandError with the shell's status otherwise."""
    found = shutil.which(name, path=path)
    if found:
        return found
    if "/" in name and os.path.exists(name):
        kind = "is a directory" if os.path.isdir(name) else "is not executable"
        raise CommandError(f"{name} {kind}", NOT_EXECUTABLE, "a Python script is run as: fgpu python3 SCRIPT")
    hint = "is it in the environment's bin folder or on PATH?"
    if name.startswith("-"):
        hint = "see `fgpu run --help` for the flags"
    elif name.endswith(".py"):
        hint = "a Python script is run as: fgpu python3 SCRIPT"
    raise CommandError(f"{name}: command not found", NOT_FOUND, hint)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


class Process:
    """A command that is forked at once, runs from `release` on, and is over, with all it started, after `wait`."""

    def __init__(self, program: str, argv: list[str]) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # blocked before the fork and before any thread: none is lost, and the threads inherit the mask
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._gate)
            self._child(launcher, gate_read, failure_write, program, argv)
        os.close(gate_read)
        os.close(failure_write)
        self.argv = argv
        self.strays = 0

    def _child(self, launcher: int, gate: int, failure: int, program: str, argv: list[str]) -> None:
        """The forked side: wait at the gate, then become the command. Never returns."""
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            with open(gate, encoding="ascii") as file:
                environment = file.read()
            if os.getppid() != launcher or not environment:
                os._exit(0)  # the launcher gave up before the command began
            for number in WATCHED | {signal.SIGPIPE, signal.SIGXFSZ}:
                signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE; the command must not inherit that
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            _exec(program, argv, json.loads(environment))
        except OSError as error:
            os.write(failure, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(NOT_FOUND)

    def cancel(self) -> None:
        """Give up before `release`: the child ends without having run the command."""
        os.close(self._gate)
        os.waitpid(self.pid, 0)
        os.close(self._failure)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def release(self, environment: Mapping[str, str]) -> None:
        """Let the command begin in this environment; CommandError if it cannot be executed."""
        with open(self._gate, "w", encoding="ascii") as file:
            json.dump(dict(environment), file)
        code = os.read(self._failure, 16)
        os.close(self._failure)
        if code:
            os.waitpid(self.pid, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise CommandError(f"{self.argv[0]}: {os.strerror(int(code))}", NOT_EXECUTABLE)

    def wait(self) -> int:
        """The command's exit status, 128+n for signal n; on return its descendants have ended, too."""
        try:
            status = self._wait_command()
            self._end_strays()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return status

    def _wait_command(self) -> int:
        while True:
            status = self._reap()
            if status is not None:
                return status
            info = signal.sigwaitinfo(WATCHED)
            # what the terminal sends has already reached the command, which is in our process group
            if info.si_signo != signal.SIGCHLD and info.si_code != SI_KERNEL:
                os.kill(self.pid, info.si_signo)

    def _reap(self) -> int | None:
        """Collect every ended child; the command's exit status if it was among them."""
        found = None
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(raw)
                found = code if code >= 0 else 128 - code

    def _end_strays(self) -> None:
        """End what the command left running: time to finish by itself, SIGTERM, then SIGKILL until none is left."""
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            strays = descendants(os.getpid())
            if not strays:
                return
            if number:
                self.strays = max(self.strays, len(strays))
                _kill_all(strays, number)
            deadline = time.monotonic() + LINGER_SECONDS
            while descendants(os.getpid()) and time.monotonic() < deadline:
                signal.sigtimedwait({signal.SIGCHLD}, 0.05)
                self._reap()
                if number == signal.SIGKILL:  # what a dying process had forked a moment ago
                    _kill_all(descendants(os.getpid()), number)


def _exec(program: str, argv: list[str], environment: dict[str, str]) -> None:
    try:
        os.execve(program, argv, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # a script without a first line that names its interpreter: shells run it themselves
        os.execve("/bin/sh", ["sh", program, *argv[1:]], environment)


def _kill_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def descendants(root: int) -> list[int]:
    """Process ids below `root`, zombies left out, from one pass over /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state ppid ..."; the name may hold spaces and parentheses
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # ended meanwhile
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
    found: list[int] = []
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += frontier
    return found
