"""Checked reading of YAML mappings that remembers lines: the error family of all configuration files.

Every value is taken once, by key and type; `end` refuses what is left. YAML's safe loader builds the values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fakegpu.errors import SpecError

_REQUIRED = object()
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
            key = str(self._construct(key_node))
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
        if kind is float and type(value) is int:
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
        self._raise(self._lines.get(key, self._line), self._join(key), _quote(found), expected)

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
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problem = getattr(error, "problem", None) or str(error)
            line = node.start_mark.line + 1
            raise ClusterError(f"{self._source}:{line}: {self._path or 'document'}: {problem}") from error

    def _show(self, node: yaml.Node) -> str:
        return _quote(self._construct(node))

    def _join(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _raise(self, line: int, key: str, found: str, expected: str) -> None:
        raise ClusterError(f"{self._source}:{line}: {key}: found {found}, expected {expected}")


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
        raise ClusterError(f"{source}{where}: not valid YAML: {problem}") from error
    if node is None:
        raise ClusterError(f"{source}:1: document: found nothing, expected a mapping")
    return Section(source, "", node, loader)


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) and value.count(" ") else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
