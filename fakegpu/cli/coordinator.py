"""Run a coordinator in the foreground until SIGTERM, SIGINT or --shutdown; or ask a running one.

`--listen HOST:PORT` or `--transport unix|tcp --address ADDRESS` or the FAKEGPU_ variables say where. Prints one line
when it is ready. --ping, --status and --shutdown talk to the coordinator at an address.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

from fakegpu.cli._parser import Parser, add_settings, settings_of
from fakegpu.errors import SettingsError
from fakegpu.settings import Settings, parse_address

FIELDS = (
    "cluster_config",
    "nodes",
    "gpus_per_node",
    "profile",
    "report",
    "markdown_report",
    "trace",
    "html",
    "max_operations",
    "staging_chunk_bytes",
    "same_host_shm",
    "pace",
    "faults",
    "token_file",
    "require_token",
    "tls_cert",
    "tls_key",
    "max_connections",
    "max_ranks",
    "max_operation_bytes",
    "max_buffered_bytes",
    "verbose",
    "quiet",
)


def make_parser() -> Parser:
    parser = Parser("fgpu coordinator", description=__doc__)
    ask = parser.add_mutually_exclusive_group()
    ask.add_argument("--ping", metavar="ADDRESS", help="is a coordinator there?")
    ask.add_argument("--status", metavar="ADDRESS", help="its state as JSON")
    ask.add_argument("--shutdown", metavar="ADDRESS", help="end it; its report is written then")
    where = parser.add_argument_group("where to listen")
    where.add_argument("--listen", metavar="HOST:PORT", help="the same as --transport tcp --address HOST:PORT")
    where.add_argument("--transport", choices=("unix", "tcp"), help="FAKEGPU_COORDINATOR_TRANSPORT; default unix")
    where.add_argument("--address", help="absolute socket path or host:port (FAKEGPU_COORDINATOR_ADDR)")
    add_settings(parser, FIELDS)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Serve, or ask; SettingsError for bad usage."""
    options = make_parser().parse_args(argv)
    if argv is None:  # the console script has no dispatcher that prints errors
        from fakegpu.cli import main as dispatch

        return dispatch(["coordinator", *sys.argv[1:]])
    settings = _where(options, settings_of(options))
    if options.ping or options.status or options.shutdown:
        return _ask(options, settings)
    return _serve(settings)


def _ask(options: argparse.Namespace, settings: Settings) -> int:
    from fakegpu import control

    address = parse_address(options.ping or options.status or options.shutdown, options.transport)
    if options.ping:
        control.ping(address, settings.secret(), settings.tls_ca)
        print(f"a coordinator answers at {address}")
    elif options.status:
        print(json.dumps(control.ask_status(address, settings.secret(), settings.tls_ca), indent=2))
    else:
        control.shut_down(address, settings.secret(), settings.tls_ca)
        print(f"the coordinator at {address} stops")
    return 0


def _where(options: argparse.Namespace, settings: Settings) -> Settings:
    if options.listen and (options.transport or options.address):
        raise SettingsError("--listen and --transport/--address exclude each other", "--listen means tcp")
    if options.listen:
        return settings.override(coordinator_transport="tcp", coordinator_addr=options.listen)
    return settings.override(coordinator_transport=options.transport, coordinator_addr=options.address)


def _serve(settings: Settings) -> int:
    from fakegpu.launch.private import check_writable, cluster_of, coordinator_options
    from fakegpu.server import Coordinator

    if not settings.coordinator_addr:
        raise SettingsError("no address to listen on", "give --listen HOST:PORT or --transport unix --address /PATH")
    address = settings.address()
    check_writable(settings)
    cluster = cluster_of(settings)
    logging.basicConfig(format="fakegpu: %(message)s", level=logging.ERROR if settings.quiet else logging.WARNING)
    coordinator = Coordinator(address.transport, str(address), cluster=cluster, **coordinator_options(settings))
    coordinator.serve_forever(ready=lambda: _announce(coordinator, settings))
    if coordinator.document is not None and not settings.quiet:
        print(f"report: {settings.report or settings.markdown_report}", flush=True)
    return 0


def _announce(coordinator, settings: Settings) -> None:
    if not settings.quiet:
        print(f"coordinator listens on {coordinator.transport} {coordinator.address}", flush=True)
