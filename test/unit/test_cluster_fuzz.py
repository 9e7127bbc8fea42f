"""Broken cluster files: whatever the bytes or the structure, the answer is a cluster or one clean line."""

import copy
import re
from pathlib import Path

import pytest
import yaml
from fakegpu import cluster
from fakegpu.cluster import ClusterError
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[2] / "verification" / "data"
FILES = [path.read_bytes() for path in sorted(DATA.glob("cluster_*.yaml"))]
VALID = yaml.safe_load((DATA / "cluster_valid.yaml").read_text())
# Extensions too, so that their rules are reached.
VALID["fabric"]["inter_node"] |= {"nics": 4, "rails": True, "switches": [{"nodes": 2, "latency_us": 1.0}], "efficiency": 1}
PIECES = (
    b"\n", b"\t", b": ", b"- ", b"[", b"{", b"&a ", b"*a", b"<<: *a", b'"\\n"', b'"\\e[31m x y"', b"!!binary x",
    b"!!timestamp x", b"2001-99-99", b".nan", b"-.inf", b"1e999", b"0x", b"1_0", b"1:2:3", b"~", b"? ", b"|\n",
    b"!!set {a}", b"!!int a", b"!!float q", b"!!bool x", b"!!omap", b"!!python/object:os.system ", b"\x00",
    b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xae", b"%YAML 9.9\n", b"---\n", b"...\n", b"=",
    b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 3000,
)  # fmt: skip
SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def answer(folder: Path, data: bytes) -> str | None:
    """The error of a cluster file with these bytes, which must be one clean line; None for a valid one."""
    path = folder / "cluster.yaml"
    path.write_bytes(data)
    try:
        spec = cluster.load(path)
    except ClusterError as error:
        text = str(error)
        assert text.isprintable(), text  # no line break and no control character either
        assert text.startswith(f"{path}:"), text
        assert len(text) < len(str(path)) + 400, text
        return text.removeprefix(str(path))
    assert spec.world_size >= 1
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@SETTINGS
@given(
    st.sampled_from(FILES),
    st.lists(
        st.tuples(st.integers(0, 600), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=4)),
        min_size=1, max_size=4,
    ),
)
def test_broken_bytes(folder, data, edits):
    for at, cut, put in edits:
        data = data[:at] + put + data[at + cut :]
    answer(folder, data)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates()
    | st.sampled_from(["a b\nc", "\x1b[31m x", 10**400, -(10**400), "h100", "node0", "nvlink", 0, -1, 1e308, b"\xff"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


@SETTINGS
@given(st.data(), st.sampled_from(["replace", "remove", "rename", "add", "twice"]))
def test_broken_structure(folder, data, how):
    document = copy.deepcopy(VALID)
    *where, last = data.draw(st.sampled_from(list(paths(VALID))))
    holder = document
    for key in where:
        holder = holder[key]
    if how == "replace":
        holder[last] = data.draw(JUNK)
    elif how == "remove":
        del holder[last]
    elif how == "twice" and isinstance(holder, list):
        holder.append(holder[last])
    else:
        value = holder.pop(last) if how == "rename" else data.draw(JUNK)
        if isinstance(holder, dict):
            holder[data.draw(st.text(max_size=6) | st.integers() | st.sampled_from(["a\nb", "\x07"]))] = value
        else:
            holder.insert(0, value)
    text = answer(folder, yaml.safe_dump(document, allow_unicode=data.draw(st.booleans())).encode())
    if text is not None:
        assert re.match(r":\d+: \S.*: found .+, expected .+", text), text


BILLION = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "key", "found"),
    [
        (BILLION + "version: *l\n", 13, "version", "[[["),
        (BILLION + "? *l\n: 1\n", 1, "version", "nothing"),
        ("version: !!timestamp x\n", 1, "document", "'x'"),
        ("version: 0x" + "f" * 5000 + "\n", 1, "version", "an integer of 20000 bits"),
        ('version: "a b\\nc"\n', 1, "version", r"'a b\nc'"),
        ('"a\\e\\nb": 1\nversion: 1\ncluster: {name: x, "\\n": 2}\n', 3, "cluster", "an unknown key"),
    ],
    ids=["aliases", "key-of-aliases", "timestamp", "huge-integer", "line-break", "key-with-line-break"],
)
def test_named_in_one_line(folder, text, line, key, found):
    error = answer(folder, text.encode())
    assert error.startswith(f":{line}: {key}"), error
    assert f": found {found}" in error, error
