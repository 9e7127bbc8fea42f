"""Two hosts on one machine: a rank in a network namespace of its own, behind a veth link that is cut and mended.

Needs the right to make namespaces (`ip netns`), else skipped with the reason; chaos.py cuts connections with a proxy of
its own everywhere. tc netem is not used, many kernels lack it: delays and torn streams are the proxy's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fakegpu
from fakegpu import errors

pytestmark = pytest.mark.resilience
RANK = """
import sys, numpy as np, fakegpu
client = fakegpu.connect(sys.argv[1], rank=1, world_size=2, timeout_ms=60000, token="secret")
comm = client.world()
comm.barrier()
for line in sys.stdin:
    print(int(comm.all_reduce(np.array([int(line)]))[0]), flush=True)
client.close()
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


class Host:
    """The other host: a namespace, its end of the link, and a rank that lives there."""

    def __init__(self) -> None:
        number = os.getpid() % 60_000
        self.name, self.near, self.far = f"fg{number}", f"fgn{number}", f"fgf{number}"
        net = f"10.{200 + number // 15_000}.{number // 60 % 250}.{number % 60 * 4}".rpartition(".")
        self.address, other = f"{net[0]}.{int(net[2]) + 1}", f"{net[0]}.{int(net[2]) + 2}"
        ip("netns", "add", self.name)
        try:
            ip("link", "add", self.near, "type", "veth", "peer", "name", self.far)
            ip("link", "set", self.far, "netns", self.name)
            ip("addr", "add", f"{self.address}/30", "dev", self.near)
            ip("link", "set", self.near, "up")
            ip("-n", self.name, "addr", "add", f"{other}/30", "dev", self.far)
            ip("-n", self.name, "link", "set", self.far, "up")
        except BaseException:
            self.remove()
            raise

    def link(self, state: str) -> None:
        ip("link", "set", self.near, state)

    def start_rank(self, address: str) -> subprocess.Popen:
        return subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, "-c", RANK, address],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                cwd=Path(__file__).parents[2])  # fmt: skip

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)  # the link goes with it
        subprocess.run(["ip", "link", "del", self.near], check=False, capture_output=True)


@pytest.fixture
def host():
    if shutil.which("ip") is None:
        pytest.skip("no ip program to make a network namespace with")
    try:
        made = Host()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no right to make a network namespace: {' '.join(error.cmd)}: {error.stderr.strip()}")
    yield made
    made.remove()


@pytest.fixture
def world(host):
    """(host, the near rank's client and communicator, the far rank's process), past a first barrier."""
    with fakegpu.Coordinator("tcp", f"{host.address}:0", token="secret") as coordinator:
        far = host.start_rank(coordinator.address)
        try:
            with fakegpu.connect(coordinator.address, rank=0, world_size=2, timeout_ms=60_000, token="secret") as client:
                comm = client.world()
                comm.barrier()
                yield host, client, comm, far
        finally:
            far.kill()
            far.communicate()


def tell(far: subprocess.Popen, number: int) -> None:
    far.stdin.write(f"{number}\n")
    far.stdin.flush()


def test_a_link_that_is_cut_for_three_seconds_only_delays(world) -> None:
    host, _, comm, far = world
    host.link("down")
    cut = time.monotonic()
    tell(far, 20)  # it submits into the dead link
    time.sleep(3)  # how long the link is down: the fault itself
    host.link("up")
    assert comm.all_reduce(np.array([1]))[0] == 21
    assert time.monotonic() - cut > 3 and far.stdout.readline() == "21\n"


def test_a_link_that_is_cut_for_ever_is_a_time_out_that_names_the_rank(world) -> None:
    host, client, comm, far = world
    host.link("down")
    tell(far, 20)
    client.timeout_ms = 1500
    with pytest.raises(errors.StatusError, match="timed out after .*never joined: rank 1") as caught:
        comm.all_reduce(np.array([1]))
    assert isinstance(caught.value, errors.CommunicatorError)
