"""The cluster report: one document (cluster_report.v1) and its renderings.

Takes a recorder's snapshot, never the live coordinator; writes each file whole or not at all (a temporary file in
the same directory, then a rename). The document's contract is cluster_report.schema.json.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fakegpu import settings
from fakegpu.errors import SpecError
from fakegpu.report import quickcheck
from fakegpu.report.document import build
from fakegpu.report.markdown import render as render_markdown
from fakegpu.report.text import dumps

if TYPE_CHECKING:
    from fakegpu.recorder import Recorder

__all__ = ["SCHEMA_NAME", "build", "load", "render_markdown", "schema", "validate", "write", "write_atomic"]

SCHEMA_NAME = "cluster_report.schema.json"


class ReportError(SpecError):
    """A report file cannot be read or breaks the schema."""


def write(
    recorder: Recorder,
    json_path: str | os.PathLike | None,
    markdown_path: str | os.PathLike | None = None,
    *,
    trace_path: str | os.PathLike | None = None,
    html_path: str | os.PathLike | None = None,
) -> dict:
    """Write every rendering that has a path and return the document.

    The Markdown page lies beside the JSON file (.md) unless `markdown_path` says otherwise. Any moment will do:
    after a failure, a signal, with ranks still alive.
    """
    if json_path and not markdown_path:
        markdown_path = Path(json_path).with_suffix(".md")
    snapshot = recorder.snapshot()
    document = build(snapshot, str(markdown_path) if markdown_path else None)
    if json_path:
        write_atomic(json_path, dumps(document))
    if markdown_path:
        write_atomic(markdown_path, render_markdown(document))
    if trace_path:
        from fakegpu.report import trace

        write_atomic(trace_path, trace.render(document))
    if html_path:
        from fakegpu.report import page

        write_atomic(html_path, page.render(document))
    return document


def write_atomic(path: str | os.PathLike, text: str) -> None:
    """Replace `path` by a file with this text; readers see the old one or the new one, never a part."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def schema() -> dict:
    return json.loads((Path(settings.data_dir()) / "schemas" / SCHEMA_NAME).read_text(encoding="utf-8"))


@functools.cache
def _quick_check() -> quickcheck.Check:
    return quickcheck.compile_schema(schema())


def validate(document: dict) -> None:
    """ReportError names the first place that breaks the schema."""
    if _quick_check()(document):
        return
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(_with_equal_ranks_once(document)))
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "document"
        raise ReportError(f"{where}: {error.message}")


def _with_equal_ranks_once(document: dict) -> dict:
    """The document with repeated rank lists of the timeline cut to one rank: checking one checks all (512 ranks x
    4096 operations are two million numbers)."""
    try:
        seen, slim = set(), []
        for entry in document["operation_timeline"]["entries"]:
            ranks = repr(entry["ranks"])
            slim.append({**entry, "ranks": entry["ranks"][:1]} if ranks in seen else entry)
            seen.add(ranks)
    except (TypeError, KeyError):
        return document
    return {**document, "operation_timeline": {**document["operation_timeline"], "entries": slim}}


def load(path: str | os.PathLike) -> dict:
    """Read a report file and check it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ReportError(f"{path}: not JSON ({error})") from error
    try:
        validate(document)
    except ReportError as error:
        raise ReportError(f"{path}: no {SCHEMA_NAME[:-12]} report: {error}") from error
    return document
