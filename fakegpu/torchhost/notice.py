"""Lines for the user on stderr. A job of many ranks hears a notice once: from its first rank."""

import os
import sys

_said: set[str] = set()


def say(text: str) -> None:
    sys.stderr.write(f"fakegpu: {text}\n")


def first_rank() -> bool:
    """True in the only process that speaks for a job: rank 0, or the first child that multiprocessing started."""
    for variable in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if os.environ.get(variable):
            return os.environ[variable] == "0"
    multiprocessing = sys.modules.get("multiprocessing.process")
    identity = multiprocessing.current_process()._identity if multiprocessing else ()
    return all(number == 1 for number in identity)


def say_once(text: str) -> None:
    """Say it in the first rank only, and there only the first time."""
    if text not in _said and first_rank():
        say(text)
    _said.add(text)
