"""The error table: complete, equal to fg_status.h, and every class reachable by its status."""

import re
from pathlib import Path

import pytest

from fakegpu import errors
from fakegpu._core import status as core_status
from fakegpu.errors import TABLE, FakeGPUError, Status, StatusError, error_for

HEADER = Path(errors.__file__).parent / "_core" / "include" / "fg_status.h"


def header_rows() -> list[tuple[str, int, int, str]]:
    rows = re.findall(r'X\((\w+), (\d+), (\d+), "(.*?)"\)', HEADER.read_text(encoding="utf-8"))
    return [(name, int(code), int(result), text) for name, code, result, text in rows]


def classes(base: type = FakeGPUError) -> list[type]:
    """The class tree of errors.py; other modules derive their own from its leaves."""
    found = [base, *(c for sub in base.__subclasses__() for c in classes(sub))]
    return [cls for cls in found if cls.__module__ == errors.__name__]


def test_table_equals_the_header():
    ours = [(status.name, int(status), result, text) for status, (_, result, text) in TABLE.items()]
    assert ours == header_rows()


def test_table_equals_the_core():
    assert [(s.name, int(s), result, text) for s, (_, result, text) in TABLE.items()] == list(core_status.TABLE)


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK], ids=lambda s: s.name)
def test_error_for_gives_the_class_of_the_status(status):
    error = error_for(status, "all_reduce #3")
    assert type(error) is TABLE[status][0]
    assert (error.status, error.nccl_result, error.text) == (status, TABLE[status][1], "all_reduce #3")


@pytest.mark.parametrize("code", [0, 55, -1, 9999])
def test_error_for_an_unknown_code_is_internal(code):
    error = error_for(code, "from the wire")
    assert isinstance(error, errors.InternalError)
    assert str(code) in error.text and "from the wire" in error.text


def test_docstring_shows_every_class_with_its_status():
    for cls in classes():
        assert re.search(rf"\b{cls.__name__}\s", errors.__doc__), cls
        if issubclass(cls, StatusError) and cls not in (StatusError, errors.CommunicatorError):
            assert re.search(rf"{cls.__name__}\s+{int(cls.status)}\s+{cls.status.name}\b", errors.__doc__), cls


def test_hint_is_the_second_line():
    assert str(errors.SettingsError("FAKEGPU_MODE=x: expected simulate", "unset it")) == (
        "FAKEGPU_MODE=x: expected simulate\nhint: unset it"
    )
    assert "\n" not in str(errors.UsageError("all_reduce: communicator destroyed"))
    assert "hint: " in str(error_for(Status.MISMATCH, "x"))


@pytest.mark.parametrize(
    ("status", "builtin"),
    [
        (Status.INVALID_ARGUMENT, ValueError),
        (Status.WORLD, ValueError),
        (Status.MISSING_RANK, TimeoutError),
        (Status.DEADLOCK, TimeoutError),
        (Status.COORDINATOR_LOST, ConnectionError),
        (Status.OUT_OF_MEMORY, MemoryError),
    ],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_builtin_base(status, builtin):
    assert isinstance(error_for(status), builtin)
