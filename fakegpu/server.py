"""The coordinator as a library object: address, thread, report. `fakegpu.Coordinator`.

    with fakegpu.Coordinator(transport="unix", report="report.json") as coordinator:
        client = fakegpu.connect(coordinator.address, rank=0, world_size=1)

`start` serves in a background thread, `serve_forever` in the caller's. Whatever ends it - stop, SHUTDOWN, a signal -
closes every socket, removes what it made and writes the report. Layer 5.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from fakegpu import endpoint, report
from fakegpu.cluster import ClusterSpec
from fakegpu.cluster import load as load_cluster
from fakegpu.coordinator import Registry
from fakegpu.errors import FakeGPUError, SettingsError, UsageError
from fakegpu.eventloop import EventLoop, raise_descriptor_limit
from fakegpu.faults import load as load_faults
from fakegpu.injection import Injector
from fakegpu.pace import Pacer
from fakegpu.peers import Hooks, Limits
from fakegpu.recorder import Recorder
from fakegpu.settings import Address, parse_address
from fakegpu.tls import server_context

log = logging.getLogger("fakegpu.coordinator")
EXPOSED = (
    "WARNING: listening on %s without a token: everybody who reaches this port can join, disturb or end jobs; set "
    "FAKEGPU_TOKEN or --token-file on both sides, or listen on 127.0.0.1"
)


class Coordinator:
    """Matches what the ranks of a job submit, moves socket payloads, names errors, writes the report.

    transport: "unix" or "tcp". address: an absolute path or "host:port" (port 0: any); by default a socket in a
    private folder, or 127.0.0.1 and any port. cluster: a ClusterSpec or a cluster file; without one the first world
    defines it. chunk_bytes, window, eager_bytes: see fg_wire.h (fg_welcome_t). token: secret that ranks must know.
    faults: a plan of faults to inject (faults.py). tls: certificate and key file; TCP only, see tls.py.
    same_host_shm: over TCP, communicators whose ranks are all on this host share memory; ranks have to ask for it too.
    """

    def __init__(
        self,
        transport: str = "unix",
        address: str | None = None,
        *,
        cluster: ClusterSpec | str | os.PathLike | None = None,
        report: str | os.PathLike | None = None,
        markdown_report: str | os.PathLike | None = None,
        trace: str | os.PathLike | None = None,
        html: str | os.PathLike | None = None,
        max_operations: int = 4096,
        chunk_bytes: int = 1 << 20,
        window: int = 4,
        eager_bytes: int = 1 << 20,
        hello_timeout: float = 10.0,
        token: str = "",
        limits: Limits | None = None,
        hooks: Hooks | None = None,
        pace: str = "none",
        faults: str | os.PathLike | None = None,
        tls: tuple[str, str] | None = None,
        same_host_shm: bool = False,
    ) -> None:
        if pace not in ("none", "model"):
            raise SettingsError(f"pace {pace!r}: expected none or model")
        if transport not in ("unix", "tcp"):
            raise SettingsError(f"transport {transport!r}: expected unix or tcp")
        for name, value, low, high in (
            ("chunk_bytes", chunk_bytes, 256, 32 << 20),
            ("window", window, 1, 64),
            ("eager_bytes", eager_bytes, 0, 32 << 20),
        ):
            if not low <= value <= high:
                raise SettingsError(f"{name} {value}: expected {low} to {high}")
        if tls and transport != "tcp":
            raise SettingsError("--tls-cert: a Unix socket needs no TLS", "listen on host:port, or leave it out")
        self._secure = server_context(*tls) if tls else None
        self._where = parse_address(address, transport) if address else None
        self._transport = transport
        self._cluster = cluster if isinstance(cluster, ClusterSpec) or cluster is None else load_cluster(cluster)
        self._reports = {"json_path": report, "markdown_path": markdown_report, "trace_path": trace, "html_path": html}
        self.recorder = Recorder(self._cluster, max_operations, transport)
        plan = load_faults(str(faults), self._cluster) if faults else ()
        self._options = {
            "chunk_bytes": chunk_bytes, "window": window, "eager_bytes": eager_bytes, "token": token,
            "limits": limits, "hooks": hooks, "pacer": Pacer(self.recorder) if pace == "model" else None,
            "injector": Injector(plan, self.recorder) if plan else None, "same_host_shm": same_host_shm,
        }  # fmt: skip
        self._hello_timeout = hello_timeout
        self._loop: EventLoop | None = None
        self._registry: Registry | None = None
        self._thread: threading.Thread | None = None
        self._folder: str | None = None
        self._ended = threading.Event()
        self._last_status: dict = {}
        self.document: dict | None = None  # the report, once stopped

    # ---- life ----

    def start(self) -> Coordinator:
        """Listen, and serve in a background thread."""
        self._listen()
        self._thread = threading.Thread(target=self._serve, name="fakegpu-coordinator", daemon=True)
        self._thread.start()
        return self

    def serve_forever(self, ready: Callable[[], None] | None = None) -> None:
        """Listen, call `ready`, and serve in this thread until SHUTDOWN, `stop`, SIGTERM or SIGINT."""
        self._listen()
        loop = self._loop
        before = {number: signal.signal(number, lambda *_: loop.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
        if ready is not None:
            ready()
        try:
            self._serve()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self._finish()

    def stop(self) -> dict | None:
        """End it, in whatever state the ranks are; the report document. Stopping twice does nothing."""
        if self._loop is None:
            return self.document
        if not self._ended.is_set():
            self._loop.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._finish()
        else:
            self._ended.wait()
        return self.document

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it ends (SHUTDOWN); whether it did."""
        return self._ended.wait(timeout)

    def __enter__(self) -> Coordinator:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    # ---- what one can ask ----

    @property
    def address(self) -> str:
        """Where ranks connect: a path or host:port, with the port that was chosen."""
        if self._where is None:
            raise UsageError("the coordinator has no address before start")
        return str(self._where)

    @property
    def transport(self) -> str:
        """unix or tcp."""
        return self._transport

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._loop is not None and not self._ended.is_set()

    def status(self) -> dict:
        """Connections, ranks, communicators and counts right now; the last state once it has ended."""
        loop, registry = self._loop, self._registry
        if loop is None:
            return {}
        if threading.current_thread() is loop.thread:
            return registry.status()
        future: Future = Future()
        if not self._ended.is_set():
            loop.post(lambda: future.set_result(registry.status()))
            while not self._ended.is_set():
                try:
                    return future.result(timeout=0.05)
                except TimeoutError:
                    continue
        return self._last_status

    # ---- inside ----

    def _listen(self) -> None:
        if self._loop is not None:
            raise UsageError("the coordinator was started before: make a new one")
        raise_descriptor_limit()
        where = self._where
        if where is None and self._transport == "unix":
            self._folder = endpoint.private_folder("coordinator")
            where = Address("unix", path=str(Path(self._folder) / "coordinator"))
        listener, self._where = endpoint.listen(where or Address("tcp", host="127.0.0.1"))
        self.exposed = self._transport == "tcp" and not self._options["token"] and endpoint.beyond_loopback(listener)
        if self.exposed:
            log.warning(EXPOSED, self._where)
        self._loop = EventLoop(listener, self._hello_timeout, self._secure)
        cluster = self._cluster
        name = f"cluster '{cluster.name}'" + (f" ({cluster.path})" if cluster.path else "") if cluster else ""
        self._registry = self._loop.registry = Registry(
            self.recorder,
            self._loop.in_thread,
            transport=self._transport,
            world_size=cluster.world_size if cluster else 0,
            cluster_name=name,
            **self._options,
        )

    def _serve(self) -> None:
        try:
            self._loop.run()
        except BaseException:
            log.exception("the coordinator's event loop failed")
            raise
        finally:
            self._registry.flush_waits()
            self._last_status = self._registry.status()
            self._registry.close()
            endpoint.remove(self._where)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._ended.set()

    def _finish(self) -> None:
        """Write the report, failures included."""
        if self.document is not None:
            return
        if not any(self._reports.values()):
            return
        try:
            self.document = report.write(self.recorder, **self._reports)
        except OSError as error:
            raise FakeGPUError(f"cannot write the report: {error.filename or ''}: {error.strerror}") from None
