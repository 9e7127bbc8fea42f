"""Streams and events through libcudart: each case of cuda_stream_cases.py in a process of its own."""

from __future__ import annotations

import pytest
from cuda_process import case_names, run_case


@pytest.mark.parametrize("name", case_names("cuda_stream_cases"))
def test_streams(name: str) -> None:
    run_case("cuda_stream_cases", name)
