"""How communicators come to be: unique ids, the init rendezvous, split, shrink, grow. State without sockets or clock.

Every request waits in a Gathering until all the ranks it needs have come, one of them proves it wrong, dies, or the
deadline passes (first request + the longest time-out among the joined). What came of it goes out as a list of
tuples whose first item is one of the codes below; the coordinator is the only caller. Layer 4.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import count

import attrs

from fakegpu.communicator import NEVER, Communicator
from fakegpu.errors import Status
from fakegpu.operations import Failure
from fakegpu.wording import rank_list

READY = 1  # (READY, Communicator, [Joiner in rank order], Gathering)
NO_COLOR = 2  # (NO_COLOR, Joiner): split with colour -1
REFUSE = 3  # (REFUSE, Joiner, status, text)
FAIL_PARENT = 4  # (FAIL_PARENT, Communicator, Failure)

COMM_SHM, SHRINK_ABORT = 1, 4  # FG_COMM_* flags of fg_wire.h
MAX_RANKS = 65536
_MAX_ISSUED = 65536  # ids that nobody used yet: bounds the memory
_ID_BYTES, _NAME_BYTES = 128, 64
_ID_MAGIC, _WORLD_MAGIC = b"FGUID\0\0\1", b"FGWORLD\1"


def world_id(session: str = "") -> bytes:
    """The well-known id of a session: ranks that cannot exchange an id meet here, as often as they like."""
    name = session.encode()
    if len(name) > _NAME_BYTES:
        raise ValueError(f"session {session!r}: {len(name)} bytes, expected at most {_NAME_BYTES}")
    return (_WORLD_MAGIC + name).ljust(_ID_BYTES, b"\0")


@attrs.define(eq=False)
class Joiner:
    """One rank's request to become a member."""

    process: object  # coordinator.Process
    request: int
    rank: int  # init, grow: in the new communicator; split, shrink: in the parent
    timeout_ns: int
    flags: int = 0
    device: int = -1
    name: str = ""
    color: int = 0
    key: int = 0


@attrs.define(eq=False)
class Gathering:
    """Ranks that wait for each other: an init, a split, a shrink or a grow."""

    kind: str
    title: str  # as texts name it
    expected: frozenset[int]
    first_ns: int
    parent: Communicator | None = None
    excluded: frozenset[int] = frozenset()
    abort: bool = False
    number: int = 0  # of this split or shrink in its parent
    timeout_ns: int = 0
    joined: dict[int, Joiner] = attrs.field(factory=dict)

    @property
    def deadline(self) -> int:
        """When the ranks that never came are named."""
        return self.first_ns + self.timeout_ns

    def add(self, joiner: Joiner) -> bool:
        """Take a rank in; whether everybody is there now."""
        self.joined[joiner.rank] = joiner
        self.timeout_ns = max(self.timeout_ns, joiner.timeout_ns)
        return self.joined.keys() == self.expected


class Membership:
    """All gatherings of one coordinator. only_host: the boot identity whose ranks alone may share memory; None: any's."""

    def __init__(self, job: int, shm_allowed: bool, only_host: str | None = None) -> None:
        self._job = job.to_bytes(8, "little")
        self._shm_allowed, self._only_host = shm_allowed, only_host
        self._issued: dict[bytes, None] = {}  # made and not used so far, oldest first
        self._gatherings: dict[object, Gathering] = {}
        self._calls: dict[tuple[str, int, int], int] = {}  # (kind, parent, rank): calls so far
        self._growing: dict[bytes, tuple] = {}  # id of a grow whose root has come: key of its gathering
        self._comm_ids = count(1)
        self.deadline = NEVER

    @property
    def waiting(self) -> int:
        """Ranks that wait for others to come."""
        return sum(len(gathering.joined) for gathering in self._gatherings.values())

    # ---- unique ids and init ----

    def new_id(self) -> bytes:
        """A unique id, good for one communicator of this coordinator's life."""
        made = (_ID_MAGIC + self._job + os.urandom(16)).ljust(_ID_BYTES, b"\0")
        self._issued[made] = None
        if len(self._issued) > _MAX_ISSUED:
            del self._issued[next(iter(self._issued))]
        return made

    def _id_problem(self, unique_id: bytes) -> str:
        if unique_id.startswith(_WORLD_MAGIC) or unique_id in self._issued or unique_id in self._gatherings:
            return ""
        if not unique_id.startswith(_ID_MAGIC):
            return "the unique id was not made by ncclGetUniqueId of fakegpu"
        if unique_id[8:16] != self._job:
            return "the unique id belongs to another job generation: another coordinator made it"
        return "the unique id was used before: a communicator was made from it, or its init failed"

    def init(self, joiner: Joiner, unique_id: bytes, nranks: int, now: int) -> list:
        """A rank asks for a communicator of `nranks` ranks that share a unique id."""
        if not 1 <= nranks <= MAX_RANKS:
            return [_refuse(joiner, f"init: nranks {nranks}, expected 1 to {MAX_RANKS}")]
        if not 0 <= joiner.rank < nranks:
            return [_refuse(joiner, f"init: rank {joiner.rank}, expected 0 to {nranks - 1}")]
        if problem := self._id_problem(unique_id):
            return [(REFUSE, joiner, Status.STALE_ID, f"init: rank {joiner.rank} of {nranks}: {problem}")]
        key = unique_id
        gathering = self._gatherings.get(key)
        if gathering is None:
            self._issued.pop(unique_id, None)
            title = f"init of communicator '{joiner.name}'" if joiner.name else "init of a communicator"
            gathering = Gathering("init", f"{title} of {nranks} ranks", frozenset(range(nranks)), now)
            self._gatherings[key] = gathering
        elif conflict := _conflict(gathering, joiner, nranks):
            return conflict if conflict[0][1] is joiner and len(conflict) == 1 else self._drop(key, conflict)
        return self._joined(key, gathering, joiner)

    # ---- split and shrink ----

    def split(self, parent: Communicator, joiner: Joiner, now: int) -> list:
        """A parent's rank asks for the communicator of its colour."""
        if joiner.color < -1:
            return [_refuse(joiner, f"split of {parent.title}: color {joiner.color}, expected -1 (none) or more")]
        if blocked := _blocked(parent, joiner, revoked_ok=True):
            return blocked
        key, gathering = self._call("split", parent, joiner, frozenset(range(parent.nranks)), now)
        return self._joined(key, gathering, joiner)

    def shrink(self, parent: Communicator, joiner: Joiner, excluded: Iterable[int], now: int) -> list:
        """A survivor asks for the parent without the excluded ranks."""
        listed = list(excluded)
        out = frozenset(listed)
        call = f"shrink of {parent.title}"
        if len(out) != len(listed) or not out or not out < frozenset(range(parent.nranks)):
            return [
                _refuse(
                    joiner, f"{call}: excluded ranks {listed}, expected some of 0 to {parent.nranks - 1}, each once"
                )
            ]
        if joiner.rank in out:
            return [_refuse(joiner, f"{call}: called by the excluded rank {joiner.rank}")]
        effects: list = []
        if joiner.flags & SHRINK_ABORT:
            if parent.failure is None:
                text = f"{parent.title}: aborted by a shrink without {rank_list(out)}"
                effects.append((FAIL_PARENT, parent, Failure(Status.ABORTED, text, "abort", rank=joiner.rank)))
        elif blocked := _blocked(parent, joiner, revoked_ok=True):
            return blocked
        survivors = frozenset(range(parent.nranks)) - out
        if dead := survivors & parent.left.keys():
            text = f"{call}: {rank_list(dead)} is gone and not among the excluded {sorted(out)}"
            return [*effects, (REFUSE, joiner, Status.DEAD_RANK, text)]
        key, gathering = self._call("shrink", parent, joiner, survivors, now)
        if not gathering.joined:
            gathering.excluded, gathering.abort = out, bool(joiner.flags & SHRINK_ABORT)
        elif gathering.excluded != out:
            first = next(iter(gathering.joined))
            text = f"{call}: rank {first} excludes {sorted(gathering.excluded)}, rank {joiner.rank} {sorted(out)}"
            gathering.joined[joiner.rank] = joiner
            return effects + self._fail(key, Status.MISMATCH, text)
        return effects + self._joined(key, gathering, joiner)

    def _call(self, kind: str, parent: Communicator, joiner: Joiner, expected: frozenset, now: int) -> tuple:
        """The gathering of a rank's n-th call on a parent: all its ranks' n-th calls belong together."""
        counter = (kind, parent.id, joiner.rank)
        number = self._calls[counter] = self._calls.get(counter, 0) + 1
        key = (kind, parent.id, number)
        gathering = self._gatherings.get(key)
        if gathering is None:
            title = f"{kind} of {parent.title}"
            gathering = self._gatherings[key] = Gathering(kind, title, expected, now, parent, number=number)
        return key, gathering

    # ---- grow ----

    def grow(self, parent: Communicator | None, joiner: Joiner, unique_id: bytes, nranks: int, now: int) -> list:
        """A member of the parent, or a new rank (no parent), asks for a communicator of `nranks` ranks.

        The parent's ranks keep their numbers. One of them brings the unique id, which ties the new ranks to them.
        """
        named = bool(unique_id.strip(b"\0"))
        problem = self._id_problem(unique_id) if named and unique_id not in self._growing else ""
        if problem:
            return [(REFUSE, joiner, Status.STALE_ID, f"grow to {nranks} ranks: {problem}")]
        if parent is None:
            key = self._growing.get(unique_id, ("grow", unique_id))
            title, expected = f"grow to {nranks} ranks", frozenset(range(max(nranks, 0)))
            gathering = self._gatherings.setdefault(key, Gathering("grow", title, expected, now))
            first = gathering.parent.nranks if gathering.parent else 1
            if not first <= joiner.rank < nranks:
                return [_refuse(joiner, f"{title}: rank {joiner.rank} of a new rank, expected {first} to {nranks - 1}")]
        elif blocked := _blocked(parent, joiner, revoked_ok=False):
            return blocked
        elif nranks <= parent.nranks:
            text = f"grow of {parent.title}: nranks {nranks}, expected more than {parent.nranks}"
            return [_refuse(joiner, text)]
        else:
            key, gathering = self._call("grow", parent, joiner, frozenset(range(nranks)), now)
            if named and unique_id not in self._growing:
                self._tie(unique_id, key, gathering)
        if conflict := _conflict(gathering, joiner, nranks) if gathering.joined else []:
            return self._drop(key, conflict) if len(conflict) > 1 else conflict
        return self._joined(key, gathering, joiner)

    def _tie(self, unique_id: bytes, key: tuple, gathering: Gathering) -> None:
        """The root has come: new ranks that were here before it belong to its gathering."""
        self._issued.pop(unique_id, None)
        self._growing[unique_id] = key
        early = self._gatherings.pop(("grow", unique_id), None)
        if early is not None:
            gathering.joined |= early.joined
            gathering.timeout_ns = max(gathering.timeout_ns, early.timeout_ns)

    # ---- common ----

    def _joined(self, key, gathering: Gathering, joiner: Joiner) -> list:
        if not gathering.add(joiner):
            self.deadline = min(self.deadline, gathering.deadline)
            return []
        del self._gatherings[key]
        if gathering.kind == "split":
            return self._finish_split(gathering)
        members = [gathering.joined[rank] for rank in sorted(gathering.joined)]
        parent = gathering.parent
        default = f"{parent.name}/{gathering.kind}{gathering.number}" if parent else ""
        self._growing = {uid: where for uid, where in self._growing.items() if where != key}
        name = next((m.name for m in members if m.name), default)
        return [self._make(gathering, members, name)]

    def _finish_split(self, gathering: Gathering) -> list:
        colors: dict[int, list[Joiner]] = {}
        for joiner in gathering.joined.values():
            colors.setdefault(joiner.color, []).append(joiner)
        effects: list = [(NO_COLOR, joiner) for joiner in colors.pop(-1, ())]
        for color in sorted(colors):
            members = sorted(colors[color], key=lambda j: (j.key, j.rank))
            default = f"{gathering.parent.name}/split{gathering.number}.{color}"
            effects.append(self._make(gathering, members, next((m.name for m in members if m.name), default)))
        return effects

    def _make(self, gathering: Gathering, members: list[Joiner], name: str) -> tuple:
        comm_id = next(self._comm_ids)
        if gathering.parent is not None and gathering.kind != "grow":
            ranks = tuple(gathering.parent.global_ranks[m.rank] for m in members)
        else:
            ranks = _global_ranks(members)
        hosts = {m.process.boot_id for m in members}
        shm = self._shm_allowed and len(hosts) == 1 and "" not in hosts and all(m.flags & COMM_SHM for m in members)
        shm = shm and self._only_host in (None, *hosts)
        name = (name or f"comm{comm_id}").encode()[: _NAME_BYTES - 1].decode(errors="ignore")
        return (READY, Communicator(comm_id, name, ranks, shm), members, gathering)

    def _drop(self, key, effects: list) -> list:
        self._gatherings.pop(key, None)
        return effects

    def _fail(self, key, status: Status, text: str) -> list:
        """Refuse everybody who waits; a split or shrink that failed leaves no usable parent."""
        gathering = self._gatherings.pop(key)
        effects: list = [(REFUSE, joiner, status, text) for joiner in gathering.joined.values()]
        if gathering.parent is not None and gathering.parent.failure is None:
            there = tuple(gathering.joined)
            failure = Failure(
                status,
                text,
                "timeout" if status == Status.MISSING_RANK else "mismatch",
                operation=gathering.kind,
                observed=there,
                waiting=there,
            )
            effects.append((FAIL_PARENT, gathering.parent, failure))
        return effects

    def leave(self, process, how: str) -> list:
        """A process ended: nobody will wait for it in vain."""
        effects: list = []
        for key, gathering in list(self._gatherings.items()):
            gone = [rank for rank, joiner in gathering.joined.items() if joiner.process is process]
            if gone:
                for rank in gone:
                    del gathering.joined[rank]
                text = f"{gathering.title}: {rank_list(gone)} is gone: {how}"
                effects += self._fail(key, Status.DEAD_RANK, text)
        return effects

    def parent_failed(self, parent: Communicator) -> list:
        """A communicator failed: splits of it cannot happen any more; a shrink goes on without the dead."""
        effects: list = []
        for key, gathering in list(self._gatherings.items()):
            if gathering.parent is parent and not gathering.abort:
                effects += self._fail(key, parent.failure.status, parent.failure.text)
        return effects

    def expire(self, now: int, connected: int) -> list:
        """Called at `deadline`; connected: how many processes there are, for the hint."""
        effects: list = []
        if now < self.deadline:
            return effects
        for key, gathering in list(self._gatherings.items()):
            if gathering.deadline <= now:
                effects += self._fail(key, Status.MISSING_RANK, _missing_text(gathering, connected))
        self.deadline = min((g.deadline for g in self._gatherings.values()), default=NEVER)
        return effects

    def forget(self, parent: Communicator) -> None:
        """Nobody holds a handle of the communicator any more."""
        for kind in ("split", "shrink", "grow"):
            for rank in range(parent.nranks):
                self._calls.pop((kind, parent.id, rank), None)


def _refuse(joiner: Joiner, text: str) -> tuple:
    return (REFUSE, joiner, Status.INVALID_ARGUMENT, text)


def _blocked(parent: Communicator, joiner: Joiner, revoked_ok: bool) -> list:
    failure = parent.failure
    if failure is None or (revoked_ok and parent.revoked):
        return []
    return [(REFUSE, joiner, failure.status, failure.text)]


def _conflict(gathering: Gathering, joiner: Joiner, nranks: int) -> list:
    """Refusals when a rank does not fit those that joined before: for the newcomer alone, or for everybody."""
    others = list(gathering.joined.values())
    first, process = others[0], joiner.process
    text = ""
    status = Status.INVALID_ARGUMENT
    if len(gathering.expected) != nranks:
        status = Status.MISMATCH
        text = f"{rank_list(gathering.joined)} gave nranks {len(gathering.expected)}, rank {joiner.rank} gave {nranks}"
    elif joiner.rank in gathering.joined:
        text = f"rank {joiner.rank} joined twice: {gathering.joined[joiner.rank].process.where} and {process.where}"
    if text:
        return [(REFUSE, other, status, f"{gathering.title}: {text}") for other in (*others, joiner)]
    sessions = {other.process.session for other in others} - {""}
    if process.session and sessions and process.session not in sessions:
        text = f"session '{process.session}' of rank {joiner.rank}, expected '{sessions.pop()}'"
        return [_refuse(joiner, f"{gathering.title}: {text}")]
    if process.generation != first.process.generation:
        text = (
            f"the unique id belongs to another job generation: rank {joiner.rank} is of generation "
            f"{process.generation}, rank {first.rank} of {first.process.generation}"
        )
        return [(REFUSE, joiner, Status.STALE_ID, f"{gathering.title}: {text}")]
    return []


def _global_ranks(members: list[Joiner]) -> tuple[int, ...]:
    """Global ranks of an init's members: the launcher's, else the rank in the process's first communicator."""
    held = Counter(id(member.process) for member in members)
    found = []
    for member in members:
        process = member.process
        if process.rank >= 0 and held[id(process)] == 1:
            found.append(process.rank)
        else:
            found.append(process.rank_of_device.setdefault(member.device, member.rank))
    return tuple(found) if len(set(found)) == len(found) else tuple(m.rank for m in members)


def _missing_text(gathering: Gathering, connected: int) -> str:
    absent = gathering.expected - gathering.joined.keys()
    late = f"timed out after {gathering.timeout_ns // 1_000_000} ms"
    if gathering.kind == "init":
        text = f"{gathering.title} {late}: {rank_list(gathering.joined)} joined; never joined: {rank_list(absent)}"
        if connected == len({id(j.process) for j in gathering.joined.values()}):
            text += " (no other process has connected: was libnccl.so.2 preloaded there?)"
        return text
    there = len(gathering.joined)
    return (
        f"{gathering.title} {late}: called by {there} of {len(gathering.expected)} parent ranks: "
        f"{rank_list(gathering.joined)}; never called by {rank_list(absent)}"
    )
