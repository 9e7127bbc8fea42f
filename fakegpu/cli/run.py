"""Run COMMAND on fake GPUs with a private coordinator (the same as `fgpu [flags] COMMAND`).

Flags come before COMMAND; everything from COMMAND on is the command's own. Exit status: the command's, 128 + n
after signal n; 2 bad usage, 3 an unhandled communication error although the command exited 0, 126/127 as shells.
"""

import argparse

from fakegpu.cli._parser import Parser, add_settings, settings_of
from fakegpu.errors import SettingsError


def split_command(argv: list[str], parser: Parser) -> tuple[argparse.Namespace, list[str]]:
    """Flags and command; the first word that is neither a flag nor a flag's value begins the command."""
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SettingsError("no command given", "for example: fgpu torchrun --nproc-per-node 4 train.py")
    return options, command


def main(argv: list[str] | None = None) -> int:
    """Parse flags and run the job."""
    parser = Parser("fgpu run", usage="fgpu [flags] [--] COMMAND ...", description=__doc__)
    add_settings(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    options, command = split_command(argv or [], parser)
    settings = settings_of(options)
    from fakegpu.launch.job import run

    return run(command, settings)
