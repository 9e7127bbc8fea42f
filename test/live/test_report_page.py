"""The report page in a real headless Chromium: nothing on the console, both maps painted, 512 ranks in the window."""

import json
import os
import re
import shutil
import subprocess

import pytest
from fakegpu import report
from fakegpu.cluster import ClusterSpec
from fakegpu.recorder import FailureEvent, OperationEvent, Recorder
from fakegpu.report import page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no Chromium on PATH ({', '.join(NAMES)})")
# Runs behind the page's own script and leaves what only a browser knows in the DOM.
PROBE = """<script>
const painted = id => {
  const c = document.getElementById(id), all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const seen = new Set();
  for (let i = 0; i < all.length; i += 4) if (all[i + 3]) seen.add(all[i] << 16 | all[i + 1] << 8 | all[i + 2]);
  return [c.width, c.height, seen.size];
};
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = JSON.stringify({time: painted('time'), heat: painted('heat'), inner: innerWidth,
  scroll: document.documentElement.scrollWidth, rows: document.querySelectorAll('details tr').length});
document.body.append(out);
</script>"""


@pytest.fixture(scope="module")
def text():
    """64 nodes x 8 GPUs: world, data parallel and tensor parallel groups, and a failure."""
    recorder, at = Recorder(ClusterSpec.default(64, 8, "h100")), 0
    groups = [(1, tuple(range(512))), *((2 + d, tuple(range(d, 512, 8))) for d in range(8))]
    groups += [(10 + n, tuple(range(8 * n, 8 * n + 8))) for n in range(64)]
    for seqno in range(400):
        comm, ranks = groups[seqno * 7 % len(groups)]
        kind = ("all_reduce", "all_gather", "reduce_scatter")[seqno % 3]
        recorder.operation(
            OperationEvent(comm, seqno, kind, "float32", "sum", "shared_memory", ranks, 5000, 4, 20000,
                           rendezvous_wait_us=20.0, execution_time_us=60.0, start_ns=at)
        )  # fmt: skip
        at += 90_000
    recorder.failure(FailureEvent(1, 9, 5, 5, "timeout", "all_reduce", 101, "rank 5 never <b>joined</b>", (0, 1), 40))
    return page.render(report.build(recorder.snapshot()))


def browse(folder, text: str) -> tuple[str, list[str]]:
    """The DOM after the scripts ran, and every line of the console."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,2000",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
        (folder / "page.html").as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_512_ranks_in_chromium(text, tmp_path):
    dom, console = browse(tmp_path, text.replace("</body>", PROBE + "</body>"))
    assert console == []
    found = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S)[1])
    assert found["scroll"] <= found["inner"]  # nothing sticks out sideways
    assert found["rows"] == 513  # a head and every rank
    for name in ("time", "heat"):
        width, height, colors = found[name]
        assert width > 300 and height > 300, (name, width, height)
        assert colors > 3, name
    assert "&lt;b&gt;joined" in dom


def test_a_console_error_is_seen(text, tmp_path):
    _, console = browse(tmp_path, text.replace("heatmap();\n", "heatmapp();\n"))
    assert any("heatmapp is not defined" in line for line in console)
