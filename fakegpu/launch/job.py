"""`fgpu COMMAND`: the command's environment, its coordinator, its process, and what is said at the end.

The order matters: everything that can be wrong is checked, then the child is forked (no thread exists yet), then the
coordinator starts, then the child is let go. Called by the `run` subcommand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from fakegpu import faults
from fakegpu.errors import FakeGPUError, SettingsError
from fakegpu.launch.environment import child_environment, default_timeout, torch_hint, torch_without_cuda
from fakegpu.launch.halves import fit_node
from fakegpu.launch.pairs import check_pair
from fakegpu.launch.process import CommandError, Process, find_program
from fakegpu.launch.unbuilt import refuse_unbuilt
from fakegpu.settings import Settings, launched_ranks

if TYPE_CHECKING:
    from fakegpu.launch.private import Summary

UNHANDLED = 3  # exit status: the command exited 0, yet a communication error went unhandled
MAX_FAILURES_SHOWN = 5
LEDGER_BYTES = 2 << 20  # about 4,000 processes (interposer/runtime/ledger.c); sparse


class TorchWithoutCuda(FakeGPUError):
    """The environment's torch has no CUDA support compiled in."""


def say(text: str) -> None:
    """One line on stderr, where it does not mix with what the command prints."""
    print(f"fakegpu: {text}", file=sys.stderr, flush=True)


def device_ledger(settings: Settings) -> Settings:
    """Settings with a ledger of device memory for all processes of the job; it is nameless and ends with the launcher."""
    if settings.mode != "simulate":
        return settings
    ledger = os.memfd_create("fakegpu-ledger")
    os.truncate(ledger, LEDGER_BYTES)
    return settings.override(device_ledger=f"/proc/{os.getpid()}/fd/{ledger}")


def run(command: list[str], settings: Settings) -> int:
    """Run the command; the exit status that fgpu ends with."""
    try:
        check_pair(settings)
        refuse_unbuilt(settings)
        faults.check_variables(settings.fault_rank, settings.fault_seqno, settings.fault_operation)
        settings = device_ledger(default_timeout(settings))
        if settings.dist_mode != "simulate":
            return _run_alone(command, settings)
        if settings.coordinator_addr and not settings.advertise:
            return _run_with_given(command, settings)
        return _run_with_private(command, settings)
    except CommandError as error:
        say(f"error: {error}")
        return error.status


def _find(command: list[str], settings: Settings) -> str:
    """The program to run; also checks what else must be there: libraries, and a torch with CUDA."""
    environment = child_environment(settings, os.environ)
    program = find_program(command[0], environment.get("PATH", os.defpath))
    version = torch_without_cuda(program) if settings.mode == "simulate" else ""
    if version:
        raise TorchWithoutCuda(f"torch {version} of this environment is built without CUDA", torch_hint())
    return program


def _run_alone(command: list[str], settings: Settings) -> int:
    """Without any coordinator: communication is left alone."""
    process = Process(_find(command, settings), command)
    process.release(child_environment(settings, os.environ))
    return _wait(process, settings)


def _run_with_given(command: list[str], settings: Settings) -> int:
    """With a coordinator that somebody else started."""
    from fakegpu.launch.given import GivenCoordinator

    given = GivenCoordinator(fit_node(command, settings, os.environ))
    if settings.verbose:
        say(f"coordinator at {settings.address()}, operation time-out {settings.timeout_ms} ms")
    return _last_words(given.summary, given.settings, _run_alone(command, given.settings))


def _refuse_below_launcher() -> None:
    """One fgpu per rank, and no common coordinator: every rank would wait alone for the others."""
    found = launched_ranks(os.environ)
    if found:
        launcher, ranks = found
        raise SettingsError(
            f"this fgpu is rank {ranks.rank} of {ranks.world_size} below {launcher}; with a coordinator of its own it "
            "would never meet the others",
            "put fgpu in front of the launcher, or start `fgpu coordinator` and give every rank --coordinator-addr",
        )


def _run_with_private(command: list[str], settings: Settings) -> int:
    _refuse_below_launcher()
    from fakegpu.launch.private import PrivateCoordinator, advertised

    settings = advertised(fit_node(command, settings, os.environ) if settings.advertise else settings)
    private = PrivateCoordinator(settings)
    process = Process(_find(command, private.settings), command)
    try:
        private.start()
    except BaseException:
        process.cancel()
        raise
    with private:
        if settings.verbose:
            say(f"coordinator at {private.address}, operation time-out {settings.timeout_ms} ms")
        process.release(child_environment(private.settings, os.environ))
        status = _wait(process, settings)
        return _last_words(private.stop, settings, status)


def _wait(process: Process, settings: Settings) -> int:
    status = process.wait()
    if process.strays and not settings.quiet:
        say(f"ended {process.strays} process{'es' if process.strays > 1 else ''} that {process.argv[0]} left running")
    return status


def _last_words(ask: Callable[[], Summary], settings: Settings, status: int) -> int:
    """Failures and the report's place; the final exit status."""
    summary = ask()
    for text in summary.failures[:MAX_FAILURES_SHOWN]:
        say(text)
    if len(summary.failures) > MAX_FAILURES_SHOWN:
        say(f"{len(summary.failures) - MAX_FAILURES_SHOWN} more failures are in the report")
    if summary.report_path and not settings.quiet:
        say(f"report: {summary.report_path}")
    counted = summary.failed if settings.strict else summary.unhandled
    if status == 0 and counted:
        say(
            f"exit status {UNHANDLED}: the command exited 0, yet {counted} communicator(s) failed"
            + ("" if settings.strict else " and some rank ended without dealing with it")
        )
        return UNHANDLED
    return status
