"""Ends the rank processes that the libnccl tests share, when the session is over."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_sessionfinish() -> None:
    module = sys.modules.get("nccl_world")
    if module is not None:
        module.close_idle()
