"""`--pace model`: matched operations start late enough to end no sooner than their modelled time.

The registry gives every matched operation here first; it comes back when it is due. The least that ranks needed for
an equal operation is taken off the wait, so that one that is slow by itself is not slowed further. Layer 4; reads
no clock. One event loop uses it, off the hot path when pacing is off.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from fakegpu.communicator import GO, NEVER, START, Communicator
from fakegpu.operations import Collective, Exchange, collective_event, exchange_event
from fakegpu.recorder import Recorder


def started_item(comm: Communicator, effect: tuple) -> Collective | Exchange | None:
    """The matched operation that an effect starts, or None."""
    if effect[0] == START:
        return effect[1]
    return comm.running[effect[1]].get(effect[2]) if effect[0] == GO else None


class Pacer:
    """Operations that are held back, by the time when they may start."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: list[tuple[int, int, Communicator, list]] = []  # due, number, communicator, effects
        self._count = 0

    @property
    def deadline(self) -> int:
        """When the next operation is due, or NEVER."""
        return self._held[0][0] if self._held else NEVER

    def hold(self, comm: Communicator, effects: list) -> list:
        """Keep the effects that start operations; what is left is to be carried out now."""
        at_once, starting = [], {}
        for effect in effects:
            item = started_item(comm, effect)
            if item is None:
                at_once.append(effect)
            else:
                starting.setdefault(id(item), (item, []))[1].append(effect)
        for item, parts in starting.values():
            delay = self._delay_ns(comm, item)
            if delay <= 0:
                at_once += parts
                continue
            item.deadline += delay
            self._count += 1
            heapq.heappush(self._held, (item.last_ns + delay, self._count, comm, parts))
        return at_once

    def due(self, now: int) -> Iterator[tuple[Communicator, list]]:
        """Operations that may start; those of a communicator that failed meanwhile never do."""
        while self._held and self._held[0][0] <= now:
            _, _, comm, effects = heapq.heappop(self._held)
            if comm.failure is None:
                yield comm, effects

    def _delay_ns(self, comm: Communicator, item: Collective | Exchange) -> int:
        collective = isinstance(item, Collective)
        event = (collective_event if collective else exchange_event)(comm, item, item.last_ns)
        least = self._recorder.least_execution_us(event) if collective else 0.0
        return int((self._recorder.modeled_time_us(event) - least) * 1000)
