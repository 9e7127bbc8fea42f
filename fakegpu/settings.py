"""Every setting of fakegpu: one table of variables, one frozen class, and the launchers' rank variables.

This is the only reader of os.environ on the Python side (interposer/runtime/config.c is the other one). The
table VARIABLES also makes the command line's flags and the reference's list. Precedence: a flag beats the
environment, which beats the cluster file, which beats the default; `given` says what was set explicitly, so that
a caller can tell a default from a choice. Layer 0.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from fakegpu.errors import SettingsError

PREFIX = "FAKEGPU_"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@attrs.frozen
class Variable:
    """One setting: the variable's name without prefix, its flag, type, default and one line of help."""

    name: str
    field: str
    flag: str | None
    type: str  # text, path, int, bytes, bool or choice
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0

    @property
    def env(self) -> str:
        """The variable's full name."""
        return PREFIX + self.name

    def parse(self, text: str, where: str | None = None) -> Any:
        """The value of a variable or flag; SettingsError names it, what was found and what was expected."""
        found = text.strip()
        if self.type == "choice" and found.lower() in self.choices:
            return found.lower()
        if self.type in ("text", "path"):
            return found
        if self.type == "bool" and found.lower() in _TRUE + _FALSE:
            return found.lower() in _TRUE
        if self.type in ("int", "bytes"):
            value = parse_bytes(found) if self.type == "bytes" else _parse_int(found)
            if value is not None and value >= self.minimum:
                return value
        raise SettingsError(f"{where or self.env}={text}: expected {self.expectation}")

    @property
    def expectation(self) -> str:
        """What a value has to be, in words."""
        if self.type == "choice":
            return " or ".join(self.choices)
        if self.type == "bool":
            return "0 or 1"
        size = " (a number of bytes, or one with KiB, MiB or GiB)" if self.type == "bytes" else ""
        return f"an integer of at least {self.minimum}{size}"


def parse_bytes(text: str) -> int | None:
    """Bytes from "4194304", "4M" or "4MiB" (binary units); None when it is not such a number."""
    digits = text.rstrip("iBbKMGTkmgt")
    unit = text[len(digits) :].upper().removesuffix("IB").removesuffix("B")
    value = _parse_int(digits.strip())
    return None if value is None or unit not in _UNITS else value * _UNITS[unit]


def _parse_int(text: str) -> int | None:
    return int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdigit() else None


_V = Variable
# fmt: off
VARIABLES: tuple[Variable, ...] = (
    _V("MODE", "mode", "--mode", "choice", "simulate", "compute: fake devices, real ones, or hands off",
       ("simulate", "hybrid", "passthrough")),
    _V("DIST_MODE", "dist_mode", "--dist-mode", "choice", "simulate", "communication: through the coordinator, beside "
       "the real NCCL, or hands off", ("disabled", "simulate", "proxy", "passthrough")),
    _V("CLUSTER_CONFIG", "cluster_config", "--cluster-config", "path", None, "cluster file (YAML)"),
    _V("NODES", "nodes", "--nodes", "int", None, "logical nodes that the ranks are split over", minimum=1),
    _V("GPUS_PER_NODE", "gpus_per_node", "--gpus-per-node", "int", None, "ranks of one logical node", minimum=1),
    _V("COORDINATOR_TRANSPORT", "coordinator_transport", "--coordinator-transport", "choice", "unix",
       "how ranks reach the coordinator", ("unix", "tcp")),
    _V("COORDINATOR_ADDR", "coordinator_addr", "--coordinator-addr", "text", None,
       "the coordinator's absolute socket path or host:port"),
    _V("COORDINATOR_TIMEOUT_MS", "timeout_ms", "--timeout-ms", "int", 1000,
       "a rank's rendezvous and operation time-out; fgpu sets 600000 for the coordinator it starts", minimum=1),
    _V("ADVERTISE", "advertise", "--advertise", "text", "", "name or address of this host by which ranks on other hosts "
       "reach the coordinator that fgpu starts; it then listens on every address and wants a token"),
    _V("SESSION", "session", "--session", "text", "", "ranks of different sessions never meet"),
    _V("TOKEN", "token", None, "text", "", "secret shared by coordinator and ranks"),
    _V("TOKEN_FILE", "token_file", "--token-file", "path", None, "file that holds the shared secret"),
    _V("REQUIRE_TOKEN", "require_token", "--require-token", "bool", False, "refuse to start without a shared secret"),
    _V("TLS_CERT", "tls_cert", "--tls-cert", "path", None, "the coordinator's certificate (PEM): it takes TLS only"),
    _V("TLS_KEY", "tls_key", "--tls-key", "path", None, "its private key (PEM); in the certificate's file by default"),
    _V("TLS_CA", "tls_ca", None, "path", None, "the certificates (PEM) that a client accepts the coordinator's from"),
    _V("MAX_CONNECTIONS", "max_connections", "--max-connections", "int", 4096, "connections of the coordinator",
       minimum=1),
    _V("MAX_RANKS", "max_ranks", "--max-ranks", "int", 65536, "ranks of one communicator", minimum=1),
    _V("MAX_OPERATION_BYTES", "max_operation_bytes", "--max-operation-bytes", "bytes", 0,
       "payload of one rank in one operation, 0 for any"),
    _V("MAX_BUFFERED_BYTES", "max_buffered_bytes", "--max-buffered-bytes", "bytes", 4 << 30,
       "payload that the coordinator holds for all operations together", minimum=1),
    _V("DEVICE_COUNT", "device_count", "--device-count", "int", 8, "fake devices of a process", minimum=1),
    _V("PROFILES", "profiles", "--devices", "text", None, 'fake devices by profile, for example "a100:2,h100:2"'),
    _V("PROFILE", "profile", "--profile", "text", "a100", "GPU profile of every fake device"),
    _V("STAGING_CHUNK_BYTES", "staging_chunk_bytes", "--staging-chunk-bytes", "bytes", 1 << 20,
       "size of one round of a staged or socket transfer", minimum=256),
    _V("STAGING_FORCE_SOCKET", "staging_force_socket", "--staging-force-socket", "bool", False,
       "move payloads through sockets even where memory could be shared"),
    _V("SAME_HOST_SHM", "same_host_shm", "--same-host-shm", "bool", False,
       "over TCP too, communicators whose ranks are all on the coordinator's host share memory"),
    _V("P2P_EAGER_BYTES", "eager_bytes", None, "bytes", 1 << 20,
       "a send of at most this many bytes completes without its receive"),
    _V("CLUSTER_REPORT_PATH", "report", "--report", "path", None, "where the coordinator writes its JSON report"),
    _V("CLUSTER_REPORT_MARKDOWN_PATH", "markdown_report", "--markdown-report", "path", None,
       "Markdown report; beside the JSON report by default"),
    _V("CLUSTER_REPORT_MAX_OPERATIONS", "max_operations", "--report-max-operations", "int", 4096,
       "operations kept in the report's timeline, 0 for none"),
    _V("TRACE", "trace", "--trace", "path", None, "where the coordinator writes a Chrome/Perfetto trace"),
    _V("HTML", "html", "--html", "path", None, "where the coordinator writes the report as a page"),
    _V("PACE", "pace", "--pace", "choice", "none", "delay operations by their modelled time", ("none", "model")),
    _V("FAULTS", "faults", "--faults", "path", None, "file of faults to inject"),
    _V("FAULT_ALLOCATIONS", "fault_allocations", None, "text", "",
       "device allocations that fail, RANK:NUMBER,...; set by fgpu from the fault plan"),
    _V("STRICT", "strict", "--strict", "bool", False, "count communication errors that the program recovered from"),
    _V("OOM_POLICY", "oom_policy", "--oom-policy", "choice", "host",
       "what bounds an allocation: the device's memory and what the host has left, or the device's alone",
       ("host", "device")),
    _V("UNSUPPORTED_API", "unsupported_api", "--unsupported-api", "choice", "warn",
       "what a call that fakegpu does not have does", ("warn", "error", "allow")),
    _V("DUPLICATE_GPU", "duplicate_gpu", None, "choice", "allow", "several ranks of a communicator on one device",
       ("allow", "error")),
    _V("NCCL_VERSION", "nccl_version", None, "int", 23007, "what ncclGetVersion answers", minimum=1),
    _V("NCCL_FAULT_RANK", "fault_rank", None, "int", -1, "global rank whose operation fails, -1 for none", minimum=-1),
    _V("NCCL_FAULT_SEQNO", "fault_seqno", None, "int", -1, "number of the operation that fails, -1 for any",
       minimum=-1),
    _V("NCCL_FAULT_OPERATION", "fault_operation", None, "text", "", "kind of the operation that fails"),
    _V("REAL_NCCL_PATH", "real_nccl_path", None, "path", None, "the real libnccl.so.2, for proxy and passthrough"),
    _V("REAL_CUDART_PATH", "real_cudart_path", None, "path", None, "the real libcudart, for hybrid and passthrough"),
    _V("LIB_DIR", "lib_dir", "--lib-dir", "path", None, "folder of the preloaded libraries"),
    _V("DEVICE_LEDGER", "device_ledger", None, "path", None, "ledger of device memory of the job; set by fgpu"),
    _V("LIBPYTHON", "libpython", None, "path", None, "libpython for programs that are not Python; set by fgpu"),
    _V("PYTHON", "python", None, "path", None, "interpreter that belongs to it; set by fgpu"),
    _V("VERBOSE", "verbose", "--verbose", "bool", False, "more on stderr, tracebacks included"),
    _V("QUIET", "quiet", "--quiet", "bool", False, "nothing on stderr but errors"),
)
# fmt: on
BY_FIELD = {variable.field: variable for variable in VARIABLES}


@attrs.frozen
class RankInfo:
    """Where a launcher put this process; -1 = not known."""

    rank: int = -1
    world_size: int = -1
    local_rank: int = -1
    local_world_size: int = -1
    node: int = -1
    generation: int = -1


# per launcher: its name, then rank, world size, local rank, local world size, node. The first whose rank and size are
# both set wins; Hydra is told from other users of PMI (Slurm's, which has the rest in SLURM_) by its local rank
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", ""),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", ""),
    ("Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    ("PMI", "PMI_RANK", "PMI_SIZE", "", "", ""),
)  # fmt: skip


def discover_launcher(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The entry of _LAUNCHERS that started this process, None for a plain one."""
    for names in _LAUNCHERS:
        if names[1] in environ and names[2] in environ and (names[0] != "Hydra" or names[3] in environ):
            return names
    return None


def discover_rank(environ: Mapping[str, str]) -> RankInfo:
    """The rank that torchrun, an MPI launcher, PMI or Slurm gave this process."""
    names = discover_launcher(environ)
    if names is None:
        return RankInfo()
    found = [_launcher_int(environ, name) for name in names[1:]]
    if not 0 <= found[0] < found[1]:
        where = f"{names[1]}={found[0]}, {names[2]}={found[1]}"
        raise SettingsError(f"{where}: expected 0 <= {names[1]} < {names[2]}")
    return RankInfo(*found, generation=_launcher_int(environ, "TORCHELASTIC_RESTART_COUNT"))


def launched_ranks(environ: Mapping[str, str]) -> tuple[str, RankInfo] | None:
    """(launcher, rank) of a process that is one of several ranks; None otherwise.

    A Slurm batch script has its job's variables, too, but is no rank: only srun's steps are.
    """
    names = discover_launcher(environ)
    if names is None or (names[0] == "Slurm" and "SLURM_STEP_ID" not in environ):
        return None
    ranks = discover_rank(environ)
    return (names[0], ranks) if ranks.world_size > 1 else None


def _launcher_int(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return -1
    value = _parse_int(text)
    if value is None or value < 0:
        raise SettingsError(f"{name}={text}: expected an integer of at least 0")
    return value


def _to_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@attrs.frozen
class _Base:
    ranks: RankInfo = attrs.field(factory=RankInfo)
    given: frozenset[str] = frozenset()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Settings of an environment (os.environ by default); an empty variable counts as not set."""
        environ = os.environ if environ is None else environ
        values = {v.field: v.parse(environ[v.env]) for v in VARIABLES if environ.get(v.env, "").strip()}
        return cls(ranks=discover_rank(environ), given=frozenset(values), **values)

    def override(self, **fields: Any) -> "Settings":
        """The same with some fields set explicitly (flags); a value of None leaves a field as it was."""
        fields = {name: value for name, value in fields.items() if value is not None}
        return attrs.evolve(self, given=self.given | frozenset(fields), **fields)

    def to_env(self) -> dict[str, str]:
        """The FAKEGPU_ variables that hand the explicitly given settings to a child process."""
        chosen = (v for v in VARIABLES if v.field in self.given and getattr(self, v.field) is not None)
        return {v.env: _to_text(getattr(self, v.field)) for v in chosen}

    def secret(self) -> str:
        """The shared secret: the token itself or the token file's first line; "" when there is none."""
        if self.token or not self.token_file:
            return self.token
        try:
            text = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{PREFIX}TOKEN_FILE={self.token_file}: not readable: {error}") from None
        if not text:
            raise SettingsError(f"{PREFIX}TOKEN_FILE={self.token_file}: empty, expected one line")
        return text.splitlines()[0]

    def address(self) -> "Address":
        """The coordinator's address; SettingsError when it is missing or does not fit the transport."""
        if not self.coordinator_addr:
            raise SettingsError(
                f"{PREFIX}COORDINATOR_ADDR is not set: expected the coordinator's address",
                "run the program with ./fgpu, or start `python3 -m fakegpu coordinator` and name its address",
            )
        return parse_address(self.coordinator_addr, self.coordinator_transport, PREFIX + "COORDINATOR_ADDR")


Settings = attrs.make_class(
    "Settings",
    {v.field: attrs.field(default=v.default, kw_only=True) for v in VARIABLES},
    bases=(_Base,),
    frozen=True,
    slots=True,
)
Settings.__module__ = __name__
Settings.__doc__ = "All settings of one process, a field per entry of VARIABLES, plus `ranks` and `given`."


SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its NUL


@attrs.frozen
class Address:
    """Where a coordinator listens: a Unix socket's path, or host and port."""

    transport: str
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.transport == "unix":
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, transport: str | None = None, where: str = "address") -> Address:
    """An address from "/absolute/path", "host:port" or "[ipv6]:port"; the transport is guessed when not given."""
    transport = transport or ("unix" if text.startswith("/") else "tcp")
    if transport == "unix":
        if not text.startswith("/"):
            raise SettingsError(f"{where}={text}: expected an absolute path for the transport unix")
        if len(os.fsencode(text)) > SOCKET_PATH_BYTES:
            found = f"{len(os.fsencode(text))} bytes, expected at most {SOCKET_PATH_BYTES}"
            raise SettingsError(f"{where}={text}: {found}")
        return Address("unix", path=text)
    host, colon, port = text.rpartition(":")
    number = _parse_int(port)
    if not colon or not host or number is None or not 0 <= number <= 65535:
        raise SettingsError(f"{where}={text}: expected host:port for the transport tcp")
    return Address("tcp", host=host.removeprefix("[").removesuffix("]"), port=number)


def nccl_restriction(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """NCCL_ALGO and NCCL_PROTO as the user set them; the timing model honours both."""
    found = os.environ if environ is None else environ
    return found.get("NCCL_ALGO") or None, found.get("NCCL_PROTO") or None


def data_dir() -> Path:
    """The folder of the data files: inside the installed package, else the repository's data/."""
    package = Path(__file__).resolve().parent
    installed = package / "data"
    return installed if installed.is_dir() else package.parent / "data"
