"""Checked reading of YAML mappings that remembers lines: the error family of all configuration files.

Every value is taken once, by key and type; `end` refuses what is left. YAML's safe loader builds the values.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fakegpu.errors import SpecError

_REQUIRED = object()
_WIDTH = 80  # of a found value
_TYPE_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false", list: "a list"}


class ClusterError(SpecError):
    """A configuration is wrong. One line: file, line, key, found, expected."""


class Section:
    """One mapping of a file, with the path of keys that leads to it."""

    def __init__(self, source: str, path: str, node: yaml.Node, loader: yaml.SafeLoader) -> None:
        self._source, self._path, self._loader = source, path, loader
        self._line = node.start_mark.line + 1
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        self._taken: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            self._raise(self._line, path or "document", self._show(node), "a mapping")
        for key_node, value_node in node.value:
            key = self._construct(key_node)
            key = key if isinstance(key, str) else show(key)
            line = key_node.start_mark.line + 1
            if key in self._nodes:
                self._raise(line, self._join(key), "the key again", f"it once (first on line {self._lines[key]})")
            self._nodes[key], self._lines[key] = value_node, line

    def take(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of `key`, of type `kind` exactly (an integer is also a number, a bool is neither)."""
        self._taken.add(key)
        if key not in self._nodes:
            if default is _REQUIRED:
                self._missing(key, _TYPE_NAMES[kind])
            return default
        value = self._construct(self._nodes[key])
        if kind is float and type(value) is int and abs(value) < sys.float_info.max:
            value = float(value)
        if type(value) is not kind:
            self.fail(key, value, _TYPE_NAMES[kind])
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.take(key, str, default)
        self.check(value != "", key, value, "a text that is not empty")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.take(key, float, default)
        if isinstance(value, float):
            self.check(value == value and abs(value) != float("inf"), key, value, "a finite number")
        return value

    def integers(self, key: str) -> list[int]:
        values = self.take(key, list)
        self.check(all(type(v) is int for v in values), key, values, "a list of integers")
        return values

    def section(self, key: str) -> Section:
        self._taken.add(key)
        if key not in self._nodes:
            self._missing(key, "a mapping")
        return Section(self._source, self._join(key), self._nodes[key], self._loader)

    def sections(self, key: str, required: bool = True) -> list[Section]:
        """A list of mappings; empty only where it is not required."""
        self._taken.add(key)
        node = self._nodes.get(key)
        if node is None and not required:
            return []
        if not isinstance(node, yaml.SequenceNode) or (required and not node.value):
            found = "nothing" if node is None else self._show(node)
            line = self._lines.get(key, self._line)
            self._raise(line, self._join(key), found, "a list of at least one mapping")
        return [
            Section(self._source, f"{self._join(key)}[{i}]", item, self._loader) for i, item in enumerate(node.value)
        ]

    def value(self, key: str) -> Any:
        """A value already checked, read again."""
        return self._construct(self._nodes[key])

    def check(self, condition: bool, key: str, found: Any, expected: str | Callable[[], str]) -> None:
        if not condition:
            self.fail(key, found, expected if isinstance(expected, str) else expected())

    def fail(self, key: str, found: Any, expected: str) -> None:
        self._raise(self._lines.get(key, self._line), self._join(key), show(found), expected)

    def end(self) -> None:
        """Every key must have been taken: an unknown one is an error, with near names as the hint."""
        import difflib

        for key in self._nodes:
            if key not in self._taken:
                near = difflib.get_close_matches(key, self._taken, n=1)
                known = f"{near[0]!r}" if near else f"one of {', '.join(sorted(self._taken))}"
                self._raise(self._lines[key], self._join(key), "an unknown key", known)

    def has(self, key: str) -> bool:
        return key in self._nodes

    def _missing(self, key: str, expected: str) -> None:
        """The key is not there; a near name that nobody asked for is probably what was meant."""
        import difflib

        near = difflib.get_close_matches(key, self._nodes.keys() - self._taken, n=1)
        found = f"nothing (but {near[0]!r} on line {self._lines[near[0]]})" if near else "nothing"
        self._raise(self._line, self._join(key), found, f"{expected} (the key is missing)")

    def _construct(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except Exception as error:  # PyYAML's constructors let errors of every class out: !!timestamp x, 1e, =
            problem = getattr(error, "problem", None) or str(error)
            found = show(node.value) if isinstance(node, yaml.ScalarNode) else f"a {node.id}"
            self._raise(node.start_mark.line + 1, self._path or "document", found, f"a plain value ({problem})", error)

    def _show(self, node: yaml.Node) -> str:
        return show(self._construct(node))

    def _join(self, key: str) -> str:
        shown = (key if key.isprintable() and key.strip() else repr(key))[:_WIDTH]
        return f"{self._path}.{shown}" if self._path else shown

    def _raise(self, line: int, key: str, found: str, expected: str, cause: Exception | None = None) -> None:
        text = f"{one_line(key)}: found {one_line(found)}, expected {one_line(expected)}"
        raise ClusterError(f"{self._source}:{line}: {text}") from cause


def load_section(path: str | Path) -> Section:
    """The top mapping of a YAML file."""
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{source}: cannot be read ({error.strerror}); expected a YAML file") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{source}: found bytes that are no UTF-8 text, expected a YAML file") from error
    return parse_section(text, source)


def parse_section(text: str, source: str) -> Section:
    try:
        loader = yaml.SafeLoader(text)  # refuses control characters already here
        node = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ClusterError(f"{source}{where}: not valid YAML: {one_line(problem)}") from error
    if node is None:
        raise ClusterError(f"{source}:1: document: found nothing, expected a mapping")
    return Section(source, "", node, loader)


class _Short(reprlib.Repr):
    """Bounded before it is written: aliases let ten lines of YAML stand for a billion values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 24
        self.maxlevel, self.maxstring, self.maxother = 3, _WIDTH, _WIDTH

    def repr_int(self, value: int, level: int) -> str:
        return repr(value) if value.bit_length() < 200 else f"an integer of {value.bit_length()} bits"


def show(value: Any) -> str:
    """A value as it may stand in an error: one line, short, printable."""
    if isinstance(value, str) and value.count(" ") and value.isprintable():
        text = value
    else:
        text = _Short().repr(value)
    return one_line(text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "...")


def one_line(text: str) -> str:
    """Without line breaks, control characters and other characters that do not print."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in " ".join(text.split()))
