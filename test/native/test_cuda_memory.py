"""Memory through libcudart: each case of cuda_memory_cases.py in a process of its own."""

from __future__ import annotations

import pytest
from cuda_process import case_names, run_case

UNGUARDED = {"case_limit_is_the_profiles"}  # more than the test machine has, never touched


@pytest.mark.parametrize("name", case_names("cuda_memory_cases"))
def test_memory(name: str) -> None:
    run_case("cuda_memory_cases", name, FAKEGPU_OOM_POLICY="device" if name in UNGUARDED else "host")
