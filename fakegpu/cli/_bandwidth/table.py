"""What a bandwidth run prints: nccl-tests' table or OSU's, and the JSON document. Formats only.

Units: the table's bandwidths are GB/s (1e9 bytes) as in nccl-tests; JSON keys carry theirs (gbps = Gbit/s).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs

from fakegpu.cli._bandwidth.workload import ROOTED, TYPE_NAMES, REDUCING, Workload

_GROUP = "    time   algbw   busbw #wrong"
_UNITS = "    (us)  (GB/s)  (GB/s)       "
HEADER = f"""\
#
#{'':61}out-of-place                       in-place            model
#       size         count      type   redop    root {_GROUP} {_GROUP}     time
#        (B)    (elements)                           {_UNITS} {_UNITS}     (us)"""


@attrs.frozen
class RankResult:
    """One rank's measurement of one size."""

    rank: int
    times_us: tuple[float, ...]
    wrong: int
    sample: tuple[float, ...]
    in_place_us: tuple[float, ...] = ()
    in_place_wrong: int = 0


@attrs.frozen
class SizeResult:
    """All local ranks' measurements of one size, and the modelled time beside them."""

    workload: Workload
    ranks: tuple[RankResult, ...]
    modeled_us: float

    @property
    def times_us(self) -> list[float]:
        """An iteration takes as long as its slowest rank."""
        return [max(column) for column in zip(*(rank.times_us for rank in self.ranks))]

    @property
    def in_place_us(self) -> list[float]:
        return [max(column) for column in zip(*(rank.in_place_us for rank in self.ranks))]

    @property
    def wrong(self) -> int:
        return sum(rank.wrong for rank in self.ranks)

    @property
    def in_place_wrong(self) -> int:
        return sum(rank.in_place_wrong for rank in self.ranks)

    @property
    def correct(self) -> bool:
        return not self.wrong and not self.in_place_wrong


def latency(times: Sequence[float]) -> dict[str, float]:
    """The four figures of a series of times."""
    return {"min": min(times), "median": statistics.median(times), "mean": statistics.fmean(times), "max": max(times)}


def bandwidths(workload: Workload, times: Sequence[float]) -> dict[str, float]:
    """Gbit/s from the mean time, as nccl-tests takes it."""
    mean_us = statistics.fmean(times)
    algbw = workload.effective_bytes * 8 / mean_us / 1e3
    return {
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * workload.bus_factor,
        "socket_payload_gbps_per_rank": workload.payload_bytes_per_rank * 8 / mean_us / 1e3,
    }


def row(result: SizeResult) -> str:
    """One line of nccl-tests' table."""
    work = result.workload
    redop = work.op.label if work.collective in REDUCING else "none"
    root = work.root if work.collective in ROOTED else -1
    head = f"{work.effective_bytes:>12} {work.count:>13} {TYPE_NAMES[work.dtype]:>9} {redop:>7} {root:>7}"
    measured = _columns(work, result.times_us, result.wrong)
    in_place = _columns(work, result.in_place_us, result.in_place_wrong)
    return f"{head} {measured} {in_place} {result.modeled_us:>8.2f}"


def _columns(work: Workload, times: Sequence[float], wrong: int) -> str:
    if not times:
        return f"{'N/A':>8} {'N/A':>7} {'N/A':>7} {'N/A':>6}"
    speed = bandwidths(work, times)
    return f"{statistics.fmean(times):>8.1f} {speed['algbw_gbps'] / 8:>7.3f} {speed['busbw_gbps'] / 8:>7.3f} {wrong:>6}"


def footer(results: Sequence[SizeResult]) -> str:
    """nccl-tests' last lines."""
    wrong = sum(result.wrong + result.in_place_wrong for result in results)
    buses = [
        bandwidths(r.workload, times)["busbw_gbps"] / 8
        for r in results
        for times in (r.times_us, r.in_place_us)
        if times
    ]
    average = statistics.fmean(buses) if buses else 0.0
    verdict = "OK" if wrong == 0 else "FAILED"
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:.6g}\n#"


def osu_title(work: Workload) -> str:
    """OSU micro-benchmarks' two header lines."""
    return f"# fakegpu {work.collective} latency test\n{'# Size':<10}{'Avg Latency(us)':>25}"


def osu_row(result: SizeResult) -> str:
    return f"{result.workload.effective_bytes:<10}{statistics.fmean(result.times_us):>25.2f}"


def as_json(result: SizeResult) -> dict:
    """The measured, checked and modelled figures of one size."""
    work, modeled = result.workload, result.modeled_us
    return {
        "size_bytes": work.effective_bytes,
        "count": work.count,
        "latency_us": latency(result.times_us),
        **bandwidths(work, result.times_us),
        "correct": result.correct,
        "wrong_values": result.wrong + result.in_place_wrong,
        "sample": [_number(x) for x in result.ranks[0].sample],
        "per_rank": [_rank_json(work, rank) for rank in result.ranks],
        "modeled": {
            "time_us": modeled,
            "bandwidth_gbps": work.effective_bytes * 8 / modeled / 1e3 if modeled else None,
        },
    }


def _rank_json(work: Workload, rank: RankResult) -> dict:
    return {
        "rank": rank.rank,
        "latency_us": latency(rank.times_us),
        **bandwidths(work, rank.times_us),
        "correct": rank.wrong + rank.in_place_wrong == 0,
        "sample": [_number(x) for x in rank.sample],
    }


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
