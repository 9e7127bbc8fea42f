"""Error classes and the one table status code <-> class <-> ncclResult_t <-> text.

FakeGPUError                      anything fakegpu reports on purpose
├── SettingsError                 a variable or flag has a value that cannot be used (also a ValueError)
├── SpecError                     a cluster file, profile or other input file is wrong (also a ValueError)
└── StatusError                   anything that has a status code of fg_status.h
    ├── CudaCallError             1    UNHANDLED_CUDA
    ├── SystemCallError           2    SYSTEM
    ├── InternalError             3    INTERNAL
    ├── ProtocolError             106  PROTOCOL
    │   └── VersionError          107  VERSION
    ├── ArgumentError             4    INVALID_ARGUMENT (also a ValueError)
    │   └── WorldError            111  WORLD
    ├── UsageError                5    INVALID_USAGE
    ├── NotSupportedError         112  NOT_SUPPORTED
    ├── InProgressError           7    IN_PROGRESS
    ├── CommunicatorError         5    what went wrong between ranks; every member of the communicator gets it
    │   ├── MismatchError         100  MISMATCH
    │   ├── OperationTimeout      8    TIMEOUT (also a TimeoutError)
    │   │   ├── MissingRankError  101  MISSING_RANK
    │   │   └── DeadlockError     102  DEADLOCK
    │   ├── RemoteError           6    REMOTE
    │   │   ├── DeadRankError     103  DEAD_RANK
    │   │   └── InjectedFault     117  INJECTED
    │   ├── AbortedError          104  ABORTED
    │   └── StaleIdError          105  STALE_ID
    ├── CoordinatorError          110  COORDINATOR_LOST (also a ConnectionError)
    │   ├── NoCoordinatorError    113  NO_COORDINATOR
    │   └── AuthError             108  AUTH
    ├── LimitError                109  LIMIT
    ├── MemoryLimitError          114  OUT_OF_MEMORY (also a MemoryError)
    ├── ForkedError               115  FORKED
    └── PythonError               116  PYTHON

Layer 0: imports the standard library only. The numbers repeat fg_status.h; a test compares the two tables.
"""

from enum import IntEnum


class Status(IntEnum):
    """Status codes of fg_status.h: 0..99 are NCCL's own result codes, 100.. are ours."""

    OK = 0
    UNHANDLED_CUDA = 1
    SYSTEM = 2
    INTERNAL = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE = 6
    IN_PROGRESS = 7
    TIMEOUT = 8
    MISMATCH = 100
    MISSING_RANK = 101
    DEADLOCK = 102
    DEAD_RANK = 103
    ABORTED = 104
    STALE_ID = 105
    PROTOCOL = 106
    VERSION = 107
    AUTH = 108
    LIMIT = 109
    COORDINATOR_LOST = 110
    WORLD = 111
    NOT_SUPPORTED = 112
    NO_COORDINATOR = 113
    OUT_OF_MEMORY = 114
    FORKED = 115
    PYTHON = 116
    INJECTED = 117


class FakeGPUError(Exception):
    """Base of every error that fakegpu raises on purpose: one line of text and, where one is known, a hint."""

    hint = ""

    def __init__(self, text: str = "", hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.text}\nhint: {self.hint}" if self.hint else self.text


class SettingsError(FakeGPUError, ValueError):
    """A variable or flag whose value cannot be used; the text names it, what was found and what was expected."""


class SpecError(FakeGPUError, ValueError):
    """An input file that is wrong; the text names file, line, key, what was found and what was expected."""


class StatusError(FakeGPUError):
    """An error with a status code; `status` is the one it was made with."""

    status = Status.INTERNAL

    def __init__(self, text: str = "", hint: str | None = None, status: int | None = None) -> None:
        super().__init__(text or TABLE[self.status][2], hint)
        if status is not None:
            self.status = Status(status)

    @property
    def nccl_result(self) -> int:
        """The ncclResult_t that a C caller sees."""
        return TABLE[self.status][1]


class CudaCallError(StatusError):
    status = Status.UNHANDLED_CUDA


class SystemCallError(StatusError):
    status = Status.SYSTEM


class InternalError(StatusError):
    status = Status.INTERNAL
    hint = "this is a defect of fakegpu; please report it with the lines above"


class ProtocolError(StatusError):
    status = Status.PROTOCOL
    hint = "is the peer a fakegpu coordinator or client of this release?"


class VersionError(ProtocolError):
    status = Status.VERSION
    hint = "use the same release of fakegpu on every host"


class ArgumentError(StatusError, ValueError):
    status = Status.INVALID_ARGUMENT


class WorldError(ArgumentError):
    status = Status.WORLD
    hint = "start as many ranks as the cluster file lists, or give no cluster file"


class UsageError(StatusError):
    status = Status.INVALID_USAGE


class NotSupportedError(StatusError):
    status = Status.NOT_SUPPORTED


class InProgressError(StatusError):
    status = Status.IN_PROGRESS


class CommunicatorError(StatusError):
    status = Status.INVALID_USAGE


class MismatchError(CommunicatorError):
    status = Status.MISMATCH
    hint = "every rank has to submit the same operations in the same order; compare the ranks named above"


class OperationTimeout(CommunicatorError, TimeoutError):
    status = Status.TIMEOUT
    hint = "FAKEGPU_COORDINATOR_TIMEOUT_MS sets this time-out"


class MissingRankError(OperationTimeout):
    status = Status.MISSING_RANK
    hint = "look where the missing ranks are (a branch on the rank, another communicator, an earlier error)"


class DeadlockError(OperationTimeout):
    status = Status.DEADLOCK
    hint = "put sends and receives that belong together into one group, or reorder them"


class RemoteError(CommunicatorError):
    status = Status.REMOTE


class DeadRankError(RemoteError):
    status = Status.DEAD_RANK
    hint = "look for the first error in that rank's own output"


class InjectedFault(RemoteError):
    status = Status.INJECTED
    hint = "the FAKEGPU_NCCL_FAULT_ variables or a fault file asked for it"


class AbortedError(CommunicatorError):
    status = Status.ABORTED


class StaleIdError(CommunicatorError):
    status = Status.STALE_ID
    hint = "make a new unique id for each communicator and each job generation"


class CoordinatorError(StatusError, ConnectionError):
    status = Status.COORDINATOR_LOST
    hint = "did the coordinator stop? look at its last lines and at its report"


class NoCoordinatorError(CoordinatorError):
    status = Status.NO_COORDINATOR
    hint = "start one with `python3 -m fakegpu coordinator`, or check FAKEGPU_COORDINATOR_ADDR"


class AuthError(CoordinatorError):
    status = Status.AUTH
    hint = "FAKEGPU_TOKEN has to be the same at the coordinator and at every rank"


class LimitError(StatusError):
    status = Status.LIMIT


class MemoryLimitError(StatusError, MemoryError):
    status = Status.OUT_OF_MEMORY


class ForkedError(StatusError):
    status = Status.FORKED
    hint = "start children with spawn, or use CUDA and NCCL only after the fork"


class PythonError(StatusError):
    status = Status.PYTHON
    hint = "run `python3 -m fakegpu doctor`"


# status: (class, ncclResult_t, one-line text). IN_PROGRESS and OK are results; OK has no class.
TABLE: dict[Status, tuple[type[StatusError] | None, int, str]] = {
    Status.OK: (None, 0, "success"),
    Status.UNHANDLED_CUDA: (CudaCallError, 1, "a CUDA call failed"),
    Status.SYSTEM: (SystemCallError, 2, "a system call failed"),
    Status.INTERNAL: (InternalError, 3, "internal error of fakegpu, please report it"),
    Status.INVALID_ARGUMENT: (ArgumentError, 4, "invalid argument"),
    Status.INVALID_USAGE: (UsageError, 5, "invalid usage"),
    Status.REMOTE: (RemoteError, 6, "a remote process exited or its connection broke"),
    Status.IN_PROGRESS: (InProgressError, 7, "operation in progress"),
    Status.TIMEOUT: (OperationTimeout, 8, "timed out"),
    Status.MISMATCH: (MismatchError, 5, "the ranks of a communicator submitted different operations"),
    Status.MISSING_RANK: (MissingRankError, 8, "a rank never joined the operation"),
    Status.DEADLOCK: (DeadlockError, 8, "the ranks wait for each other in a circle"),
    Status.DEAD_RANK: (DeadRankError, 6, "a rank of the communicator died"),
    Status.ABORTED: (AbortedError, 5, "the communicator was aborted"),
    Status.STALE_ID: (StaleIdError, 5, "the unique id belongs to another job generation or was used before"),
    Status.PROTOCOL: (ProtocolError, 3, "malformed frame"),
    Status.VERSION: (VersionError, 3, "protocol versions differ"),
    Status.AUTH: (AuthError, 2, "not authorised"),
    Status.LIMIT: (LimitError, 2, "a configured limit was exceeded"),
    Status.COORDINATOR_LOST: (CoordinatorError, 6, "the connection to the coordinator is gone"),
    Status.WORLD: (WorldError, 4, "rank or world size does not fit the cluster"),
    Status.NOT_SUPPORTED: (NotSupportedError, 5, "not supported by fakegpu"),
    Status.NO_COORDINATOR: (NoCoordinatorError, 2, "no coordinator at the given address"),
    Status.OUT_OF_MEMORY: (MemoryLimitError, 2, "out of memory"),
    Status.FORKED: (ForkedError, 1, "the runtime was initialised before a fork and cannot be used in the child"),
    Status.PYTHON: (PythonError, 2, "the Python interpreter that fakegpu needs could not be used"),
    Status.INJECTED: (InjectedFault, 6, "an injected fault"),
}


def error_for(status: int, text: str = "", hint: str | None = None) -> StatusError:
    """The exception for a status code that came over the wire; an unknown or OK code is an InternalError."""
    cls = TABLE[Status(status)][0] if status in Status._value2member_map_ else None
    if cls is None:
        return InternalError(f"unexpected status {status}: {text}", hint)
    return cls(text, hint)
