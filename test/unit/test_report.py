import importlib.util
import json
import os
from pathlib import Path

import jsonschema
import pytest
from fakegpu import report
from fakegpu.cluster import ClusterSpec
from fakegpu.recorder import COLLECTIVE_KINDS, FailureEvent, OperationEvent, Recorder, RecoveryEvent
from fakegpu.recorder import logical_payload_bytes
from fakegpu.report import quickcheck
from fakegpu.timing import TimeModel

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_cluster_report", ROOT / "verification/check_cluster_report.py")
checker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checker)


@pytest.fixture
def recorder():
    made = Recorder(ClusterSpec.default(3, 2, "h100"), transport="tcp")
    for rank in range(6):
        made.rank_joined(rank, "host", 100 + rank, rank // 2, rank % 2)
    made.communicator_created(1, "world", range(6))
    made.communicator_created(2, "pair", (1, 4), parent=1)
    for seqno, kind in enumerate(COLLECTIVE_KINDS):
        size = logical_payload_bytes(kind, 6, 10, 4)
        made.operation(
            OperationEvent(1, seqno, kind, "float32", "sum", "socket_payload", tuple(range(6)), 10, 4, size, root=3)
        )
    made.operation(OperationEvent(2, 0, "send", "int8", None, "shared_memory", (4, 1), 7, 1, 7, src=4, dst=1))
    made.wait(3, 1.5)
    made.timeout(5)
    made.failure(FailureEvent(1, 9, 5, 5, "timeout", "all_reduce", 101, "rank 5 <b>never</b> | joined", (0, 1), 40))
    made.recovery(RecoveryEvent(1, 3, 9, True, (5,), (0, 1, 2, 3, 4), 12.5))
    made.note("an injected <script>", 2, 117)
    return made


def test_both_schema_files_are_the_same():
    name = "cluster_report.schema.json"
    assert (ROOT / name).read_bytes() == (ROOT / "data" / "schemas" / name).read_bytes()


def test_the_report_holds(recorder, tmp_path):
    document = report.write(recorder, tmp_path / "out.json")
    report.validate(document)
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert checker.check(document, report.schema()) == []
    assert document["cluster"]["markdown_report_path"] == str(tmp_path / "out.md")
    assert len(document["node_pairs"]) == 3
    assert document["ranks"][5]["timeouts"] == 1
    assert report.load(tmp_path / "out.json") == document


def test_an_empty_report_holds(tmp_path):
    document = report.write(Recorder(ClusterSpec.default(2, 1)), tmp_path / "out.json", tmp_path / "page.md")
    assert checker.check(document, report.schema()) == []
    assert [pair["total_bytes"] for pair in document["node_pairs"]] == [0]
    assert (tmp_path / "page.md").exists()
    assert not (tmp_path / "out.md").exists()


def damage_link(d):
    d["links"][1]["bytes"] += 1


def damage_pair(d):
    d["node_pairs"][0]["total_bytes"] += 1


def damage_rank(d):
    d["ranks"][2]["collective_calls"] -= 1


def damage_timeline(d):
    d["operation_timeline"]["entries"].pop()


def damage_call(d):
    d["collectives"]["all_reduce"]["calls"] += 1


def damage_schema(d):
    del d["resilience"]


def damage_rank_pair(d):
    d["rank_pairs"][0]["bytes"] += 8


@pytest.mark.parametrize(
    "damage",
    [damage_link, damage_pair, damage_rank, damage_timeline, damage_call, damage_schema, damage_rank_pair],
)
def test_the_checker_sees_damage(recorder, damage):
    document = report.build(recorder.snapshot())
    damage(document)
    assert checker.check(document, report.schema())


def test_markdown_has_every_section_and_escapes(recorder, tmp_path):
    report.write(recorder, tmp_path / "out.json")
    text = (tmp_path / "out.md").read_text()
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == [
        "Collective Summary", "Point-to-Point Summary", "Node-Pair Communication", "Rank Summary",
        "Resilience Events", "Recent Operation Timeline", "Metric Notes",
    ]
    assert "<b>" not in text
    assert "never&lt;/b&gt; \\| joined" in text


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        report.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense"])
def test_a_file_that_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(report.ReportError, match="bad.json"):
        report.load(path)


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from leaves(item, (*path, index))
    yield path


def test_the_quick_check_lets_nothing_pass_that_jsonschema_refuses(recorder):
    document = report.build(recorder.snapshot())
    quick = quickcheck.compile_schema(report.schema())
    judge = jsonschema.Draft202012Validator(report.schema())
    assert quick(document)
    refused = 0
    for *where, last in [path for path in list(leaves(document)) if path]:
        holder = document
        for step in where:
            holder = holder[step]
        for wrong in (-1, True, None, "x", 1.5, [], {}, [-1], float("nan")):
            right, holder[last] = holder[last], wrong
            if not quick(document):
                refused += 1
            else:
                assert not list(judge.iter_errors(document)), (*where, last, wrong)
            holder[last] = right
    assert refused > 2000


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}, [1, 2], [1, True]),
        ({"type": "object", "required": ["a"], "additionalProperties": False, "properties": {"a": {}}}, None, {"b": 1}),
        ({"type": ["string", "null"]}, None, 0),
        ({"enum": ["a", 1]}, 1, True),
        ({"type": "number", "exclusiveMinimum": 0}, 0.5, 0),
        ({"type": "array", "minItems": 1}, [0], []),
        ({"type": "string", "pattern": "a"}, None, "a"),
    ],
)
def test_quick_check_keywords(schema, good, bad):
    quick = quickcheck.compile_schema(schema)
    assert not quick(bad)
    assert good is None or quick(good)


def test_operations_that_differ_in_size_share_one_pattern(monkeypatch):
    """All-to-alls of 512 ranks have 261,632 edges each: 40 sizes must not cost 40 times that."""
    asked = []
    whole = TimeModel.traffic

    def traffic(model, operation, algorithm):
        asked.append(operation.kind)
        return whole(model, operation, algorithm)

    monkeypatch.setattr(TimeModel, "traffic", traffic)
    recorder, ranks = Recorder(ClusterSpec.default(4, 2, "h100")), tuple(range(8))
    for size in range(1, 41):
        for kind in ("all_to_all", "all_gather", "barrier"):
            recorder.operation(OperationEvent(1, size, kind, "float32", None, "shared_memory", ranks, size, 4, 9))
    document = report.build(recorder.snapshot())
    assert sorted(asked) == ["all_gather", "all_to_all", "barrier"]
    bytes_of = {(row["src"], row["dst"]): row["bytes"] for row in document["rank_pairs"]}
    total = 4 * sum(range(1, 41))
    assert bytes_of[0, 5] == total
    assert bytes_of[0, 1] == total + 7 * total
    (pair,) = [row for row in document["node_pairs"] if (row["node_a"], row["node_b"]) == ("node0", "node1")]
    assert pair["a_to_b"]["total_bytes"] == 4 * total + 7 * total
    assert pair["a_to_b"]["peak_bytes_per_operation"] == 7 * 160
    assert pair["operations"] == 80
    assert checker.check(document, report.schema()) == []
