"""Segments are shared, bounded, checked against their inode, and gone with their last user, killed or not."""

import ctypes
import gc
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakegpu._core import wire
from fakegpu._core.staging import ControlSegment, Segment

OWNER = """
import os, sys
from fakegpu._core.staging import Segment
segment = Segment.create(1 << 20)
segment.view(0, 5)[:] = b"owner"
print(os.getpid(), segment.fd, segment.inode, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner_process():
    """A process that owns a segment until it is killed: yields it and (pid, fd, inode)."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process, tuple(map(int, process.stdout.readline().split()))
        finally:
            process.kill()


def holds(process: Path, inode: int) -> bool:
    maps = (process / "maps").read_text().splitlines()
    if any("/memfd:fakegpu" in line and line.split()[4] == str(inode) for line in maps):
        return True
    for fd in (process / "fd").iterdir():
        try:
            if os.readlink(fd).startswith("/memfd:fakegpu") and fd.stat().st_ino == inode:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def users_of(inode: int) -> list[str]:
    """Processes that map the memory file or hold a descriptor of it."""
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if holds(process, inode):
                users.append(process.name)
        except OSError:  # gone meanwhile, or not ours
            continue
    return users


def test_two_mappings_share_memory():
    with Segment.create(10_000) as mine:
        with Segment.open(os.getpid(), mine.fd, mine.inode, 0, mine.bytes) as theirs:
            mine.view(9_990, 10)[:] = b"0123456789"
            assert bytes(theirs.view(9_995, 5)) == b"56789"
            assert (theirs.bytes, theirs.inode, theirs.fd) == (10_000, mine.inode, -1)
            theirs.view(0, 1)[0] = 7
            assert mine.view(0, 1)[0] == 7


def test_from_fd_takes_the_descriptor_over():
    with Segment.create(4096) as mine:
        other = Segment.from_fd(os.dup(mine.fd))
        fd = other.fd
        other.close()
        with pytest.raises(OSError):
            os.fstat(fd)


def test_from_fd_closes_what_it_cannot_map():
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(ValueError, match="found no file, expected a memory file"):
        Segment.from_fd(read)
    with pytest.raises(OSError):
        os.fstat(read)


@pytest.mark.parametrize(
    ("offset", "bytes"), [(4096, 1), (4095, 2), (0, 4097), (2**64 - 1, 2), (1, 2**64 - 1)], ids=str
)
def test_views_and_references_end_with_the_segment(offset, bytes):
    with Segment.create(4096) as segment:
        with pytest.raises(ValueError, match=f"found {bytes} bytes at {offset}, expected at most 4096"):
            segment.view(offset, bytes)
        with pytest.raises(ValueError, match="found inode .* and 4096 bytes, expected"):
            Segment.open(os.getpid(), segment.fd, segment.inode, offset, bytes)
        assert segment.view(4096, 0).nbytes == 0


def test_another_file_behind_the_descriptor_is_refused():
    with Segment.create(4096) as segment, Segment.create(4096) as other:
        with pytest.raises(ValueError, match=f"found inode {other.inode} .* expected inode {segment.inode}"):
            Segment.open(os.getpid(), other.fd, segment.inode)


@pytest.mark.parametrize(("pid", "fd"), [(0, 3), (1, -1)], ids=["pid-0", "fd-negative"])
def test_an_unmappable_reference_is_refused(pid, fd):
    with pytest.raises(ValueError, match="expected a mappable buffer"):
        Segment.open(pid, fd, 1)


@pytest.mark.parametrize("bytes", [0, 2**63], ids=["zero", "absurd"])
def test_create_refuses_sizes(bytes):
    with pytest.raises(ValueError, match=f"segment: bytes: found {bytes}"):
        Segment.create(bytes)


def test_nobody_can_shrink_it_under_its_users():
    with Segment.create(8192) as segment:
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, 0)


def test_close_is_idempotent_and_waits_for_views():
    segment = Segment.create(mmap.PAGESIZE)
    view = segment.view(0, 10)
    with pytest.raises(BufferError, match="found 1 views, expected none"):
        segment.close()
    view.release()
    gc.collect()
    segment.close()
    segment.close()
    assert segment.closed
    assert segment.fd == -1
    with pytest.raises(ValueError, match="expected at most 0"):
        segment.view(0, 1)
    with pytest.raises(ValueError, match="closed segment"):
        memoryview(segment)


def test_a_killed_owner_leaves_nothing():
    with owner_process() as (process, (pid, fd, inode)):
        peer = Segment.open(pid, fd, inode, 0, 1 << 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert bytes(peer.view(0, 5)) == b"owner"  # a peer in the middle of a copy does not fault
        assert users_of(inode) == [str(os.getpid())]
        with pytest.raises(OSError):
            Segment.open(pid, fd, inode)
        peer.close()
        # no mapping and no descriptor anywhere: the kernel has freed the memory
        assert users_of(inode) == []
        assert not [name for name in os.listdir("/dev/shm") if "fakegpu" in name]


def test_control_segment_starts_clean():
    with ControlSegment.create(3, comm_id=77) as control:
        with Segment.open(os.getpid(), control.fd, control.inode) as member:
            words = struct.unpack(f"<4I2Q{(control.bytes - 32) // 4}I", bytes(member.view(0, control.bytes)))
            assert (words[0], words[2], words[3]) == (0x4C525443, 3, 64)
            assert words[4:6] == (77, control.bytes)
            assert not any(words[6:])
        areas = 3 * 64 * 4096  # inputs of small collectives
        assert control.bytes == 64 + 64 * 64 + 3 * (64 + 64 * 128) + areas
        assert (control.nranks, control.abort) == (3, 0)


@pytest.mark.parametrize("nranks", [0, wire.MAX_RANKS + 1])
def test_control_segment_refuses_sizes(nranks):
    with pytest.raises(ValueError, match=f"nranks: found {nranks}, expected 1 to 65536"):
        ControlSegment.create(nranks, 1)


def test_dead_and_busy_ranks():
    with ControlSegment.create(2, 1) as control:
        control.set_dead(1)
        assert [control.is_dead(rank) for rank in range(2)] == [False, True]
        control.view(64 + 64 * 64, 4)[:] = b"\1\0\0\0"  # rank 0 enters
        assert [control.is_busy(rank) for rank in range(2)] == [True, False]
        for call in (control.set_dead, control.is_dead, control.is_busy):
            with pytest.raises(ValueError, match="rank: found 2, expected 0 to 1"):
                call(2)


def test_the_first_abort_stays():
    with ControlSegment.create(2, 1) as control:
        control.set_abort(103)
        control.set_abort(104)
        assert control.abort == 103
        with pytest.raises(ValueError, match="found status 0"):
            control.set_abort(0)
    with pytest.raises(ValueError, match="found it closed"):
        control.set_abort(1)


@pytest.mark.parametrize("word", [32, 64, 64 + 63 * 64], ids=["abort-word", "first-barrier", "last-barrier"])
def test_abort_wakes_every_sleeper(word):
    """A thread sleeps in futex(2) on the word of another mapping, as a rank does, until the coordinator aborts."""
    libc = ctypes.CDLL(None, use_errno=True)
    SYS_futex, WAIT = 202 if os.uname().machine == "x86_64" else 98, 0
    with ControlSegment.create(2, 1) as control:
        rank = mmap.mmap(control.fd, control.bytes)
        address = ctypes.addressof(ctypes.c_uint32.from_buffer(rank, word))
        tid, woken = [], threading.Event()

        def sleep():
            tid.append(threading.get_native_id())
            # ctypes drops the GIL; 60 s only bounds a failing test
            limit = (ctypes.c_long * 2)(60, 0)
            if libc.syscall(SYS_futex, ctypes.c_void_p(address), WAIT, 0, limit, None, 0) == 0:
                woken.set()

        thread = threading.Thread(target=sleep, daemon=True)
        thread.start()
        asleep = f"{SYS_futex} {address:#x}"
        while not (tid and Path(f"/proc/self/task/{tid[0]}/syscall").read_text().startswith(asleep)):
            os.sched_yield()
        control.set_abort(104)
        assert woken.wait(10)
        thread.join(10)
