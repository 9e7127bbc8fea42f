"""Random NCCL programs on rank processes: each is equal to the reference, or refused on every member that takes part.

FAKEGPU_FUZZ_PROGRAMS says how many (`./ftest fuzz`: 5,000); the same ranks run all of them, so that anything that is
left behind adds up: descriptors, memfds, sockets, threads and named segments are counted at the end.
"""

from __future__ import annotations

import os

import nccl_bodies as bodies
import nccl_fuzz as fuzz
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nccl_world import World

PROGRAMS = int(os.environ.get("FAKEGPU_FUZZ_PROGRAMS", "80"))
WORLDS = ("2-shm", "3-tcp", "4-shm", "5-socket", "8-shm")
TIMEOUT_MS = 1500
EACH = max(PROGRAMS // len(WORLDS), 16)  # programs per world
WARM_UP = EACH // 2  # descriptors and threads are counted first here: segments that are kept for the next use are there
# blocks of the last program's eager sends go when the thread that reads the socket hears of their receipt
LATE = {"/memfd:fakegpu": 4}


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "fakegpu" in name}


class Fuzzed:
    """A world, how many programs it ran, and what its processes held when it was warm."""

    def __init__(self, name: str) -> None:
        nranks, transport = name.split("-")
        self.world = World(int(nranks), transport, TIMEOUT_MS, {"chunk_bytes": 512}, FAKEGPU_PROFILE="h100")
        self.programs = self.refused = self.operations = 0
        self.before: list = []

    def held(self) -> list:
        return [*self.world.run(bodies.resources), fuzz.process_resources()]

    def run(self, program: dict) -> None:
        if self.programs == WARM_UP:
            self.before = self.held()
        self.programs += 1
        uid = self.world.finish(self.world.start(bodies.unique_id, ranks=[0]))[0]
        self.world.run(bodies.init, uid)  # everybody has it before anybody makes a mistake
        answers = self.world.run(bodies.run_program, program, timeout=30)
        self.world.run(bodies.end_program, program["wrong"] is not None)
        check(program, answers)
        self.operations += sum(len(step.get("ops", ())) for step in program["steps"])
        self.refused += program["wrong"] is not None


def check(program: dict, answers: list[dict]) -> None:
    wrong, comms = program["wrong"], program["comms"]
    for rank, answer in enumerate(answers):
        if wrong is None:
            assert answer["error"] is None, (rank, answer["error"], program)
        elif rank in comms[program["steps"][wrong["step"]]["comm"]]:
            alone = wrong["how"] == "missing" and rank == wrong["rank"]
            mine = rank == wrong["rank"]
            assert alone or mine or answer["error"][1], f"rank {rank} was not told: {program}"
            if answer["error"]:
                number, text = answer["error"]
                # eager sends let the wrong rank be steps ahead of one that is still receiving: that one is told there
                assert number <= wrong["step"] and "rank" in text, (answer["error"], program)
                assert wrong["how"] != "missing" or "never" in text, (text, program)
        else:
            assert answer["error"] is None, (rank, answer["error"], program)
        for (number, i), output in answer["outputs"].items():
            step = program["steps"][number]
            ranks = comms[step["comm"]]
            want = fuzz.results_of(step["ops"][i], len(ranks))[ranks.index(rank)]
            if want is not None and not (wrong and number == wrong["step"]):
                np.testing.assert_array_equal(output.view(want.dtype), want, err_msg=f"rank {rank}, step {number} of {program}")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORLDS)
def test_programs_are_right_or_refused_everywhere(name, capsys):
    fuzzed = Fuzzed(name)

    @settings(max_examples=EACH, suppress_health_check=list(HealthCheck), deadline=None)
    @given(data=st.data())
    def run(data):
        fuzzed.run(data.draw(fuzz.programs(fuzzed.world.nranks)))

    try:
        run()
        nothing_is_left(fuzzed, capsys)
    finally:
        fuzzed.world.close()
    assert not segments()


def nothing_is_left(fuzzed: Fuzzed, capsys) -> None:
    assert fuzzed.programs > WARM_UP and (fuzzed.refused or fuzzed.programs < 100)
    assert all(process.poll() is None for process in fuzzed.world.processes)
    after = fuzzed.held()
    with capsys.disabled():
        print(f"\n{fuzzed.world.nranks} ranks over {fuzzed.world.coordinator.transport}: {fuzzed.programs} programs, "
              f"{fuzzed.operations} operations, {fuzzed.refused} refused as they should be; rank 0 holds {after[0]}")  # fmt: skip
    for rank, (first, last) in enumerate(zip(fuzzed.before, after)):
        grown = {kind: (first.get(kind, 0), count) for kind, count in last.items()
                 if count > first.get(kind, 0) + LATE.get(kind, 0)}  # fmt: skip
        assert not grown, f"process {rank} of {len(after)} holds more than when it was warm: {grown}"
