"""libnccl.so.2 through ctypes and numpy: one rank in this process, as any program sees the library.

Owns the loading of the library and the translation of arguments; decides nothing about communication. Used by the
bandwidth command, the tests and the verification scripts. Errors are NcclError with the call, NCCL's result and the
library's text. Layer 5.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy as np

UNIQUE_ID_BYTES = 128
SUM, PROD, MAX, MIN, AVG = range(5)
IN_PROGRESS = 7

# ncclDataType_t by the names of fakegpu.dtypes
DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float8_e4m3": 10, "float8_e5m2": 11,
}  # fmt: skip
RESULTS = (
    "success", "unhandled cuda error", "system error", "internal error", "invalid argument", "invalid usage",
    "remote error", "in progress", "timeout",
)  # fmt: skip


class NcclError(RuntimeError):
    """A call that did not answer ncclSuccess."""

    def __init__(self, call: str, result: int, text: str) -> None:
        self.call, self.result, self.text = call, result, text
        name = RESULTS[result] if 0 <= result < len(RESULTS) else "unknown"
        super().__init__(f"{call}: {name} ({result}): {text}")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * UNIQUE_ID_BYTES)]

    def __bytes__(self) -> bytes:
        return ctypes.string_at(byref(self), UNIQUE_ID_BYTES)

    @classmethod
    def from_bytes(cls, raw: bytes) -> UniqueId:
        made = cls()
        ctypes.memmove(byref(made), raw, UNIQUE_ID_BYTES)
        return made


_UNDEFINED = -(2**31)


class Config(ctypes.Structure):
    """ncclConfig_t of 2.30.7 with nothing set."""

    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cgaClusterSize", c_int),
        ("minCTAs", c_int), ("maxCTAs", c_int), ("netName", c_char_p), ("splitShare", c_int), ("trafficClass", c_int),
        ("commName", c_char_p), ("collnetEnable", c_int), ("CTAPolicy", c_int), ("shrinkShare", c_int),
        ("nvlsCTAs", c_int), ("nChannelsPerNetPeer", c_int), ("nvlinkCentricSched", c_int), ("graphUsageMode", c_int),
        ("numRmaCtx", c_int), ("maxP2pPeers", c_int), ("graphStreamOrdering", c_int),
    ]  # fmt: skip

    def __init__(self, **values) -> None:
        super().__init__(size=ctypes.sizeof(Config), magic=0xCAFEBEEF, version=23007)
        for name, kind in self._fields_[3:]:
            if kind is c_int:
                setattr(self, name, _UNDEFINED)
        for name, value in values.items():
            setattr(self, name, value.encode() if isinstance(value, str) else value)


class SimInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("estimatedTime", ctypes.c_float)]

    def __init__(self) -> None:
        super().__init__(size=ctypes.sizeof(SimInfo), magic=0x74685283, version=23007, estimatedTime=-1.0)


_BUFFERS = [c_void_p, c_void_p, c_size_t, c_int]
_SIGNATURES: dict[str, list] = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "ncclCommInitRankScalable": [POINTER(c_void_p), c_int, c_int, c_int, POINTER(UniqueId), POINTER(Config)],
    "ncclCommInitAll": [POINTER(c_void_p), c_int, POINTER(c_int)],
    "ncclCommSplit": [c_void_p, c_int, c_int, POINTER(c_void_p), POINTER(Config)],
    "ncclCommShrink": [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p), POINTER(Config), c_int],
    "ncclCommGrow": [c_void_p, c_int, POINTER(UniqueId), c_int, POINTER(c_void_p), POINTER(Config)],
    "ncclCommGetUniqueId": [c_void_p, POINTER(UniqueId)],
    "ncclCommFinalize": [c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
    "ncclCommRevoke": [c_void_p, c_int],
    "ncclCommSuspend": [c_void_p, c_int],
    "ncclCommResume": [c_void_p],
    "ncclCommMemStats": [c_void_p, c_int, POINTER(c_uint64)],
    "ncclCommCount": [c_void_p, POINTER(c_int)],
    "ncclCommCuDevice": [c_void_p, POINTER(c_int)],
    "ncclCommUserRank": [c_void_p, POINTER(c_int)],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclCommRegister": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)],
    "ncclCommDeregister": [c_void_p, c_void_p],
    "ncclMemAlloc": [POINTER(c_void_p), c_size_t],
    "ncclMemFree": [c_void_p],
    "ncclRedOpCreatePreMulSum": [POINTER(c_int), c_void_p, c_int, c_int, c_void_p],
    "ncclRedOpDestroy": [c_int, c_void_p],
    "ncclAllReduce": [*_BUFFERS, c_int, c_void_p, c_void_p],
    "ncclReduce": [*_BUFFERS, c_int, c_int, c_void_p, c_void_p],
    "ncclBroadcast": [*_BUFFERS, c_int, c_void_p, c_void_p],
    "ncclBcast": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": [*_BUFFERS, c_void_p, c_void_p],
    "ncclReduceScatter": [*_BUFFERS, c_int, c_void_p, c_void_p],
    "ncclAlltoAll": [*_BUFFERS, c_void_p, c_void_p],
    "ncclGather": [*_BUFFERS, c_int, c_void_p, c_void_p],
    "ncclScatter": [*_BUFFERS, c_int, c_void_p, c_void_p],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclGroupSimulateEnd": [POINTER(SimInfo)],
    "ncclCommWindowRegister": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int],
    "ncclCommWindowDeregister": [c_void_p, c_void_p],
    "ncclWinGetUserPtr": [c_void_p, c_void_p, POINTER(c_void_p)],
    "ncclGetPeerDevicePointer": [c_void_p, c_size_t, c_int, POINTER(c_void_p)],
    "ncclPutSignal": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_size_t, c_int, c_int, c_uint, c_void_p, c_void_p],
    "ncclSignal": [c_int, c_int, c_int, c_uint, c_void_p, c_void_p],
    "ncclWaitSignal": [c_int, c_void_p, c_void_p, c_void_p],
}


def library_path() -> Path:
    """Where this package's libnccl.so.2 lies."""
    return Path(__file__).resolve().parent / "lib" / "libnccl.so.2"


class Nccl:
    """The library. `nccl.ncclAllReduce(...)` calls it and raises NcclError; `nccl.raw.ncclX(...)` answers the result."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.raw = ctypes.CDLL(str(path or library_path()))
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.raw, name)
            function.argtypes, function.restype = arguments, c_int
        for name in ("ncclGetLastError", "ncclGetErrorString"):
            getattr(self.raw, name).restype = c_char_p
        self.raw.ncclGetLastError.argtypes = [c_void_p]
        self.raw.ncclGetErrorString.argtypes = [c_int]

    def __getattr__(self, name: str):
        if name not in _SIGNATURES:
            raise AttributeError(f"libnccl.so.2 binding has no call {name!r}")
        function = getattr(self.raw, name)

        def call(*arguments):
            result = function(*arguments)
            if result not in (0, IN_PROGRESS):
                raise NcclError(name, result, self.last_error())
            return result

        self.__dict__[name] = call
        return call

    def last_error(self, comm: int | None = None) -> str:
        """Text of the last error, of a communicator if one is given."""
        return (self.raw.ncclGetLastError(comm) or b"").decode(errors="replace")

    def unique_id(self) -> bytes:
        made = UniqueId()
        self.ncclGetUniqueId(byref(made))
        return bytes(made)

    def init(self, nranks: int, unique_id: bytes, rank: int, config: Config | None = None) -> Comm:
        """This process's rank of a new communicator."""
        handle = c_void_p()
        if config is None:
            self.ncclCommInitRank(byref(handle), nranks, UniqueId.from_bytes(unique_id), rank)
        else:
            self.ncclCommInitRankConfig(byref(handle), nranks, UniqueId.from_bytes(unique_id), rank, byref(config))
        return Comm(self, handle.value, nranks, rank)

    @contextmanager
    def group(self):
        """Calls inside are issued together at the end."""
        self.ncclGroupStart()
        try:
            yield
        except BaseException:
            self.raw.ncclGroupEnd()
            raise
        self.ncclGroupEnd()


def _address(buffer) -> int | None:
    """Of a numpy array, or a raw address (device memory), or None."""
    return buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer


def dtype_of(array: np.ndarray) -> int:
    """ncclDataType_t of an array; bfloat16 and fp8 travel as integers and need the dtype given."""
    return DTYPES[array.dtype.name]


class Comm:
    """One rank's communicator. Buffers are numpy arrays or addresses; counts and dtypes default to the arrays'."""

    def __init__(self, nccl: Nccl, handle: int | None, nranks: int, rank: int) -> None:
        self.nccl, self.handle, self.nranks, self.rank = nccl, handle, nranks, rank

    def all_reduce(self, send, recv, op=SUM, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(send, count, dtype)
        self.nccl.ncclAllReduce(_address(send), _address(recv), count, dtype, op, self.handle, stream)

    def reduce(self, send, recv, root, op=SUM, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(send, count, dtype)
        self.nccl.ncclReduce(_address(send), _address(recv), count, dtype, op, root, self.handle, stream)

    def broadcast(self, send, recv, root, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(recv, count, dtype)
        self.nccl.ncclBroadcast(_address(send), _address(recv), count, dtype, root, self.handle, stream)

    def all_gather(self, send, recv, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(send, count, dtype)
        self.nccl.ncclAllGather(_address(send), _address(recv), count, dtype, self.handle, stream)

    def reduce_scatter(self, send, recv, op=SUM, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(recv, count, dtype)
        self.nccl.ncclReduceScatter(_address(send), _address(recv), count, dtype, op, self.handle, stream)

    def all_to_all(self, send, recv, count, dtype=None, stream=None) -> None:
        _, dtype = _fill(send, count, dtype)
        self.nccl.ncclAlltoAll(_address(send), _address(recv), count, dtype, self.handle, stream)

    def gather(self, send, recv, root, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(send, count, dtype)
        self.nccl.ncclGather(_address(send), _address(recv), count, dtype, root, self.handle, stream)

    def scatter(self, send, recv, root, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(recv, count, dtype)
        self.nccl.ncclScatter(_address(send), _address(recv), count, dtype, root, self.handle, stream)

    def send(self, buffer, peer, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(buffer, count, dtype)
        self.nccl.ncclSend(_address(buffer), count, dtype, peer, self.handle, stream)

    def recv(self, buffer, peer, count=None, dtype=None, stream=None) -> None:
        count, dtype = _fill(buffer, count, dtype)
        self.nccl.ncclRecv(_address(buffer), count, dtype, peer, self.handle, stream)

    def split(self, color: int, key: int, config: Config | None = None) -> Comm | None:
        """The communicator of this rank's colour; None for colour -1."""
        handle = c_void_p()
        self.nccl.ncclCommSplit(self.handle, color, key, byref(handle), byref(config) if config else None)
        return self._made(handle)

    def shrink(self, exclude: list[int], abort: bool = False) -> Comm | None:
        handle, ranks = c_void_p(), (c_int * len(exclude))(*exclude)
        self.nccl.ncclCommShrink(self.handle, ranks, len(exclude), byref(handle), None, int(abort))
        return self._made(handle)

    def _made(self, handle: c_void_p) -> Comm | None:
        if not handle.value:
            return None
        count, rank = c_int(), c_int()
        self.nccl.ncclCommCount(handle, byref(count))
        self.nccl.ncclCommUserRank(handle, byref(rank))
        return Comm(self.nccl, handle.value, count.value, rank.value)

    def premul_sum(self, scalar: np.ndarray, dtype: int | None = None, on_device: int | None = None) -> int:
        """A reduction that multiplies this rank's elements by the scalar first."""
        op = c_int()
        address = on_device if on_device is not None else scalar.ctypes.data
        kind = dtype if dtype is not None else dtype_of(scalar)
        self.nccl.ncclRedOpCreatePreMulSum(byref(op), address, kind, 1 if on_device is None else 0, self.handle)
        return op.value

    def async_error(self) -> int:
        result = c_int()
        self.nccl.ncclCommGetAsyncError(self.handle, byref(result))
        return result.value

    def last_error(self) -> str:
        return self.nccl.last_error(self.handle)

    def finalize(self) -> None:
        self.nccl.ncclCommFinalize(self.handle)

    def destroy(self) -> None:
        handle, self.handle = self.handle, None
        self.nccl.ncclCommDestroy(handle)

    def abort(self) -> None:
        handle, self.handle = self.handle, None
        self.nccl.ncclCommAbort(handle)


def _fill(buffer, count: int | None, dtype: int | None) -> tuple[int, int]:
    if isinstance(buffer, np.ndarray):
        return buffer.size if count is None else count, dtype_of(buffer) if dtype is None else dtype
    if count is None or dtype is None:
        raise ValueError("a raw address needs count and dtype")
    return count, dtype
