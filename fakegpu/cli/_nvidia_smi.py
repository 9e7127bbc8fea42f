"""A small nvidia-smi: the fake devices as libnvidia-ml tells them.

Knows the table, -L, -q, --query-gpu with --format=csv, --query-compute-apps, -i and --version; everything else is refused by name.
Started as `nvidia-smi` below fgpu (fakegpu/launch/programs); asks NVML only, so it shows what any NVML client sees.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import sys
from collections.abc import Callable

MIB = 1 << 20
_TEMPERATURE_GPU = 0
_CLOCK_GRAPHICS, _CLOCK_SM, _CLOCK_MEMORY = 0, 1, 2


class NvmlError(Exception):
    """An NVML call failed; the text is NVML's."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint),
                ("device", ctypes.c_uint), ("ids", ctypes.c_uint), ("subsystem", ctypes.c_uint),
                ("bus_id", ctypes.c_char * 32)]  # fmt: skip


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong), ("instance", ctypes.c_uint),
                ("compute", ctypes.c_uint)]  # fmt: skip


class Nvml:
    """The library, initialised."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise NvmlError(f"{name}: {self._library.nvmlErrorString(result).decode()}")

    def text(self, name: str, *arguments) -> str:
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, 96)
        return buffer.value.decode()

    def number(self, name: str, *arguments) -> int:
        value = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def record(self, kind: type, name: str, *arguments):
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return value


class Gpu:
    """One device."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.handle = ctypes.c_void_p()
        nvml.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.handle))
        self.name = nvml.text("nvmlDeviceGetName", self.handle)
        self.uuid = nvml.text("nvmlDeviceGetUUID", self.handle)
        self.bus_id = nvml.record(_Pci, "nvmlDeviceGetPciInfo_v3", self.handle).bus_id.decode()
        self.memory = nvml.record(_Memory, "nvmlDeviceGetMemoryInfo", self.handle)
        self.utilization = nvml.record(_Utilization, "nvmlDeviceGetUtilizationRates", self.handle)

    def ask(self, name: str, *arguments) -> int:
        return self.nvml.number(name, self.handle, *arguments)

    def capability(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.nvml.call("nvmlDeviceGetCudaComputeCapability", self.handle, ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def processes(self) -> list[tuple[int, int]]:
        """(pid, bytes) of the processes that compute on it."""
        count, rows = ctypes.c_uint(64), (_Process * 64)()
        self.nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", self.handle, ctypes.byref(count), rows)
        return [(row.pid, row.memory) for row in rows[: count.value]]


def _mib(value: int) -> str:
    return f"{value // MIB} MiB"


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.2f} W"


# --query-gpu: name -> value with its unit
FIELDS: dict[str, Callable[[Gpu], str]] = {
    "index": lambda g: str(g.index),
    "count": lambda g: str(g.nvml.number("nvmlDeviceGetCount_v2")),
    "name": lambda g: g.name,
    "gpu_name": lambda g: g.name,
    "uuid": lambda g: g.uuid,
    "gpu_uuid": lambda g: g.uuid,
    "pci.bus_id": lambda g: g.bus_id,
    "gpu_bus_id": lambda g: g.bus_id,
    "driver_version": lambda g: g.nvml.text("nvmlSystemGetDriverVersion"),
    "compute_cap": Gpu.capability,
    "memory.total": lambda g: _mib(g.memory.total),
    "memory.used": lambda g: _mib(g.memory.used),
    "memory.free": lambda g: _mib(g.memory.free),
    "utilization.gpu": lambda g: f"{g.utilization.gpu} %",
    "utilization.memory": lambda g: f"{g.utilization.memory} %",
    "temperature.gpu": lambda g: str(g.ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)),
    "power.draw": lambda g: _watts(g.ask("nvmlDeviceGetPowerUsage")),
    "power.limit": lambda g: _watts(g.ask("nvmlDeviceGetEnforcedPowerLimit")),
    "enforced.power.limit": lambda g: _watts(g.ask("nvmlDeviceGetEnforcedPowerLimit")),
    "clocks.gr": lambda g: f"{g.ask('nvmlDeviceGetClockInfo', _CLOCK_GRAPHICS)} MHz",
    "clocks.sm": lambda g: f"{g.ask('nvmlDeviceGetClockInfo', _CLOCK_SM)} MHz",
    "clocks.mem": lambda g: f"{g.ask('nvmlDeviceGetClockInfo', _CLOCK_MEMORY)} MHz",
    "clocks.max.sm": lambda g: f"{g.ask('nvmlDeviceGetMaxClockInfo', _CLOCK_SM)} MHz",
    "clocks.max.mem": lambda g: f"{g.ask('nvmlDeviceGetMaxClockInfo', _CLOCK_MEMORY)} MHz",
    "pstate": lambda g: f"P{g.ask('nvmlDeviceGetPerformanceState')}",
    "persistence_mode": lambda g: "Enabled" if g.ask("nvmlDeviceGetPersistenceMode") else "Disabled",
    "pcie.link.gen.max": lambda g: str(g.ask("nvmlDeviceGetMaxPcieLinkGeneration")),
    "pcie.link.width.max": lambda g: str(g.ask("nvmlDeviceGetMaxPcieLinkWidth")),
    "timestamp": lambda g: datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3],
}
APP_FIELDS = ("gpu_uuid", "gpu_name", "gpu_bus_id", "pid", "process_name", "used_memory", "used_gpu_memory")


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0].decode(errors="replace") or "[unknown]"
    except OSError:
        return "[unknown]"


def _app(gpu: Gpu, pid: int, used: int, field: str) -> str:
    values = {"pid": lambda: str(pid), "process_name": lambda: _process_name(pid), "used_memory": lambda: _mib(used),
              "used_gpu_memory": lambda: _mib(used)}  # fmt: skip
    return values[field]() if field in values else FIELDS[field](gpu)


def _asked(text: str, known) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise NvmlError(f'Field "{name}" is not a valid field to query; there are: {", ".join(sorted(known))}')
    return names


def _csv(names: list[str], rows: list[list[str]], form: str) -> str:
    options = [option.strip() for option in form.split(",")]
    if options[0] != "csv" or set(options) - {"csv", "noheader", "nounits"}:
        raise NvmlError(f"--format={form}: expected csv with noheader and nounits where wanted")
    units = {"memory": "MiB", "utilization": "%", "power": "W", "clocks": "MHz", "used": "MiB", "enforced": "W"}
    if "nounits" in options:
        rows = [[value.rsplit(" ", 1)[0] if name.split(".")[0].split("_")[0] in units else value
                 for name, value in zip(names, row)] for row in rows]  # fmt: skip
        head = names
    else:
        head = [f"{name} [{units[first]}]" if (first := name.split(".")[0].split("_")[0]) in units else name
                for name in names]  # fmt: skip
    lines = [] if "noheader" in options else [", ".join(head)]
    return "\n".join(lines + [", ".join(row) for row in rows])


def _table(nvml: Nvml, gpus: list[Gpu]) -> str:
    cuda = ctypes.c_int()
    nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    driver = nvml.text("nvmlSystemGetDriverVersion")
    version = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"
    line = "+" + "-" * 89 + "+"
    split = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    out = [datetime.datetime.now().strftime("%a %b %d %H:%M:%S %Y"), line,
           f"| {f'NVIDIA-SMI {driver} (fakegpu)':<36}{f'Driver Version: {driver}':<32}{f'CUDA Version: {version} ':<20}|",
           split,
           f"| {'GPU  Name':<25}{'Persistence-M':>14} | {'Bus-Id          Disp.A':<22} | {'Volatile Uncorr. ECC':>20} |",
           f"| {'Fan  Temp   Perf  Pwr:Usage/Cap':<39} | {'Memory-Usage':>22} | {'GPU-Util  Compute M.':>20} |",
           split.replace("-", "=")]  # fmt: skip
    for gpu in gpus:
        persistence = "On" if gpu.ask("nvmlDeviceGetPersistenceMode") else "Off"
        power = f"{gpu.ask('nvmlDeviceGetPowerUsage') // 1000}W / {gpu.ask('nvmlDeviceGetEnforcedPowerLimit') // 1000}W"
        temperature = f"{FIELDS['temperature.gpu'](gpu)}C"
        used = f"{gpu.memory.used // MIB}MiB / {gpu.memory.total // MIB}MiB"
        out += [f"| {gpu.index:>3}  {gpu.name[:26]:<27}{persistence:>6}  | {gpu.bus_id:<16}{'Off':>6} | {0:>20} |",
                f"| {'N/A':<4} {temperature:<6} {FIELDS['pstate'](gpu):<5} {power:>21} | {used:>22} | "
                f"{f'{gpu.utilization.gpu}%':>8}{'Default':>12} |", split]  # fmt: skip
    out += ["", line, f"| {'Processes:':<87} |", f"| {'GPU       PID   Type   Process name':<66}{'GPU Memory':>21} |",
            line.replace("-", "=")]  # fmt: skip
    rows = [f"| {gpu.index:>3}  {pid:>8}      C   {_process_name(pid)[-42:]:<43}{_mib(used):>21} |"
            for gpu in gpus for pid, used in gpu.processes()]  # fmt: skip
    return "\n".join([*out, *(rows or [f"| {'No running processes found':<87} |"]), line])


def _details(gpus: list[Gpu]) -> str:
    return "\n".join(
        f"GPU {gpu.bus_id}\n" + "\n".join(f"    {name:<36}: {FIELDS[name](gpu)}" for name in FIELDS) for gpu in gpus
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description=__doc__.partition("\n")[0])
    parser.add_argument("-L", "--list-gpus", action="store_true", help="one line per device")
    parser.add_argument("-q", "--query", action="store_true", help="everything that is known of each device")
    parser.add_argument("-i", "--id", help="only these devices: index, UUID or PCI bus id, comma-separated")
    parser.add_argument("--query-gpu", metavar="FIELDS", help="fields of each device, comma-separated")
    parser.add_argument("--query-compute-apps", metavar="FIELDS", help="fields of each process on a device")
    parser.add_argument("--format", default="csv", help="csv[,noheader][,nounits]")
    parser.add_argument("--version", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> int:
    options = make_parser().parse_args(argv)
    try:
        print(_answer(options))
    except (NvmlError, OSError) as error:
        print(f"nvidia-smi (fakegpu): {error}", file=sys.stderr)
        return 2
    return 0


def _answer(options: argparse.Namespace) -> str:
    nvml = Nvml()
    gpus = [Gpu(nvml, index) for index in range(nvml.number("nvmlDeviceGetCount_v2"))]
    if options.id:
        wanted = options.id.split(",")
        gpus = [gpu for gpu in gpus if {str(gpu.index), gpu.uuid, gpu.bus_id} & set(wanted)]
        if len(gpus) != len(wanted):
            raise NvmlError(f"-i {options.id}: No devices were found")
    if options.version:
        return f"NVIDIA-SMI version  : {nvml.text('nvmlSystemGetDriverVersion')} (fakegpu)"
    if options.list_gpus:
        return "\n".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})" for gpu in gpus)
    if options.query_gpu:
        names = _asked(options.query_gpu, FIELDS)
        return _csv(names, [[FIELDS[name](gpu) for name in names] for gpu in gpus], options.format)
    if options.query_compute_apps:
        names = _asked(options.query_compute_apps, APP_FIELDS)
        rows = [[_app(gpu, pid, used, name) for name in names] for gpu in gpus for pid, used in gpu.processes()]
        return _csv(names, rows, options.format)
    return _details(gpus) if options.query else _table(nvml, gpus)


if __name__ == "__main__":
    sys.exit(main())
