"""The command line: finds the subcommand's module and calls its main(argv) -> exit status.

Each public module of this package is one subcommand (`lib_dir.py` is `lib-dir`); its docstring's first line is its
help. Only the chosen one is imported, so that `fgpu COMMAND` starts quickly. Modules print and parse; what they do
lives in lower layers. Errors of the package end as one line and a hint, exit status 2.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
USAGE = """usage: fgpu [flags] [--] COMMAND ...    run COMMAND on fake GPUs (the same as: fgpu run ...)
       fgpu SUBCOMMAND ...             see `fgpu SUBCOMMAND --help`

subcommands:
"""


def subcommands() -> dict[str, str]:
    """Subcommand name -> module name."""
    names = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    return {name.replace("_", "-"): f"{__name__}.{name}" for name in names}


def print_help() -> None:
    lines = []
    for name, module in subcommands().items():
        text = (import_module(module).__doc__ or "").strip().splitlines()
        lines.append(f"  {name:<12} {text[0] if text else ''}")
    print(USAGE + "\n".join(lines))
    print("\nflags of `fgpu run`: see `fgpu run --help`")


def fail(error: Exception, verbose: bool) -> int:
    """One line and, where there is one, a hint on stderr; the traceback only with --verbose."""
    if verbose:
        import traceback

        traceback.print_exception(error)
    print(f"fakegpu: error: {str(error) or type(error).__name__}", file=sys.stderr)
    return 2


def main(argv: list[str] | None = None) -> int:
    """Dispatch; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        print_help()
        return 0
    if arguments[:1] == ["--version"]:
        from fakegpu import __version__

        print(f"fakegpu {__version__}")
        return 0
    known = subcommands()
    name = arguments[0] if arguments and arguments[0] in known else "run"
    if arguments and arguments[0] in known:
        arguments = arguments[1:]
    try:
        return import_module(known[name]).main(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output went away (a pager, head); python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from fakegpu.errors import FakeGPUError

        if not isinstance(error, (FakeGPUError, OSError)):
            raise
        return fail(error, "--verbose" in arguments)
