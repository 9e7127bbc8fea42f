import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakegpu import report
from fakegpu.cli import estimate as estimate_cli
from fakegpu.cli import main
from fakegpu.cluster import ClusterSpec
from fakegpu.recorder import FailureEvent, OperationEvent, Recorder
from fakegpu.report import page, trace
from fakegpu.report.compare import compare
from fakegpu.report.text import describe, dumps, runs

NASTY = '</script><img src=x onerror="alert(1)"> & | `'


def make(calls: int = 3, host: str = "host") -> dict:
    recorder = Recorder(ClusterSpec.default(2, 2, "h100", name=NASTY))
    for rank in range(4):
        recorder.rank_joined(rank, host, 1, rank // 2, rank % 2)
    recorder.communicator_created(1, NASTY, range(4))
    for seqno in range(calls):
        recorder.operation(
            OperationEvent(1, seqno, "all_gather", "float32", None, "shared_memory", (0, 1, 2, 3), 10, 4, 160,
                           rendezvous_wait_us=5.0, execution_time_us=20.0, start_ns=1_000_000 + 100_000 * seqno)
        )  # fmt: skip
    recorder.failure(FailureEvent(1, calls, 2, 2, "timeout", "all_reduce", 101, NASTY, (0, 1), 40))
    recorder.note(NASTY, 1)
    return report.build(recorder.snapshot())


def test_trace_has_measured_and_modelled_tracks_per_rank():
    events = json.loads(trace.render(make()))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in complete} == {0, 1, 2, 3}
    assert {event["cat"] for event in complete} == {"rendezvous", "measured", "modelled"}
    first = next(event for event in complete if event["cat"] == "measured")
    assert (first["ts"], first["dur"]) == (5.0, 20.0)
    assert first["args"]["In msg nelems"] == 10
    assert first["args"]["Out msg nelems"] == 40
    assert first["args"]["dtype"] == "float32"
    assert first["args"]["Group size"] == 4
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert any(name.endswith("(modelled)") for name in names)


def test_trace_stays_loadable(monkeypatch):
    monkeypatch.setattr(trace, "MAX_EVENTS", 30)
    document = json.loads(trace.render(make(10)))
    shown = [event for event in document["traceEvents"] if event.get("cat") == "measured"]
    assert {event["args"]["Seq"] for event in shown} == {8, 9}
    assert document["otherData"]["dropped_operations"] == 8


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_page_is_self_contained_and_escapes_everything():
    text = page.render(make(host=NASTY))
    parser = Tags()
    parser.feed(text)
    assert "img" not in parser.tags
    assert parser.links == ["data:,"]
    assert not re.search(r"https?://", text)
    assert text.count("<script") == text.count("</script>") == 2
    assert 'class="bad"' in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["ranks"] == 4
    assert len(data["timeline"]) == 3


def test_page_of_an_empty_report():
    document = report.build(Recorder(ClusterSpec.default(1, 1)).snapshot())
    assert "No operations retained" in page.render(document)


def test_page_with_hundreds_of_ranks_stays_small():
    recorder = Recorder(ClusterSpec.default(64, 8, "h100"))
    for seqno in range(300):
        recorder.operation(
            OperationEvent(1, seqno, "all_reduce", "float32", "sum", "shared_memory", tuple(range(512)), 1000, 4, 4000)
        )
    assert len(page.render(report.build(recorder.snapshot()))) < 1_000_000


def test_compare_names_what_changed():
    sections = compare(make(3), make(5))
    assert ("collective calls", 3, 5) in sections["totals"]
    assert ("all_gather bytes", 480, 800) in sections["collectives"]
    ((name, first, second),) = sections["node pairs (bytes)"]
    assert name == "node0 - node1"
    assert second * 3 == first * 5


def test_json_is_one_line_per_entry():
    document = make(3)
    assert json.loads(dumps(document)) == document
    assert dumps({"a": [1, 2], "b": []}).count("\n") <= 5


@pytest.mark.parametrize(
    ("ranks", "expected"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((4, 0, 1), "0-1, 4")]
)
def test_ranks_as_text(ranks, expected):
    assert describe(ranks) == expected
    assert sum(b - a + 1 for a, b in runs(sorted(ranks))) == len(ranks)


@pytest.fixture
def stored(tmp_path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(dumps(make()))
    return path


def test_report_command_renders_a_stored_file(stored, tmp_path, capsys):
    targets = [tmp_path / name for name in ("out.md", "out.html", "out.trace")]
    command = ["report", str(stored)]
    for flag, path in zip(("--markdown", "--html", "--trace"), targets, strict=True):
        command += [flag, str(path)]
    assert main(command) == 0
    assert all(path.stat().st_size > 500 for path in targets)
    assert main(["report", str(stored)]) == 0
    assert "all_gather" in capsys.readouterr().out


def test_report_command_compares(stored, capsys):
    assert main(["report", str(stored), str(stored)]) == 0
    assert "collective calls" in capsys.readouterr().out
    assert main(["report", str(stored), "/nowhere.json"]) == 2
    assert "/nowhere.json" in capsys.readouterr().err


def test_estimate_command(capsys, tmp_path):
    assert main(["estimate", "--cluster", "dgx-h100", "--sizes", "1K,1G", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["size_bytes"] for row in rows] == [1024, 1 << 30]
    assert set(rows[0]) == {"size_bytes", "time_us", "algbw_GBps", "busbw_GBps", "algorithm", "protocol"}
    assert rows[1]["busbw_GBps"] == pytest.approx(rows[1]["algbw_GBps"] * 1.75, rel=1e-4)
    table = tmp_path / "table.csv"
    table.write_text("# hardware: x\ncollective,size_bytes,time_us\nall_reduce,1024,18.0\nalltoall,1024,8.0\n")
    assert main(["estimate", "--compare", str(table), "--json"]) == 0
    assert [part["collective"] for part in json.loads(capsys.readouterr().out)] == ["all_reduce", "all_to_all"]
    assert main(["estimate", "-b", "1M", "-e", "4M", "--explain"]) == 0
    assert "bottleneck" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--collective", "shuffle"], ["-b", "2M", "-e", "1M"], ["--sizes", "many"], ["-f", "1"], ["-i", "0"],
     ["--cluster", "nosuch"], ["--nodes", "0"], ["--gpus-per-node", "9"], ["--algo", "quantum"],
     ["--compare", "/nowhere.csv"], ["--proto", "ll128", "--cluster", "pcie-l40s"]],
    ids=" ".join,
)  # fmt: skip
def test_estimate_refuses_bad_input_in_one_line(arguments, capsys):
    assert main(["estimate", *arguments]) == 2
    err = capsys.readouterr().err
    assert "expected" in err or "cannot be read" in err or "presets:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("row", ["all_reduce,big,1", "all_reduce,8", "all_reduce,8,-1", "dance,8,1"])
def test_a_bad_table_names_its_line(tmp_path, row):
    path = tmp_path / "bad.csv"
    path.write_text(f"collective,size_bytes,time_us\n{row}\n")
    with pytest.raises(ValueError, match=r"bad\.csv:2|expected one of"):
        estimate_cli.read_table(str(path))


def test_cluster_command(capsys, tmp_path):
    assert main(["cluster", "show", "gb200-nvl72", "--nodes", "2", "--gpus-per-node", "4"]) == 0
    path = tmp_path / "cluster.yaml"
    path.write_text(capsys.readouterr().out)
    assert main(["cluster", "check", str(path)]) == 0
    assert "2 nodes, 8 ranks" in capsys.readouterr().out
    assert main(["cluster", "list"]) == 0
    assert "dgx1-v100" in capsys.readouterr().out
    assert main(["cluster", "profiles"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 40
    assert main(["cluster", "show", "p5", "--nodes", "0"]) == 2
