"""Shared test configuration: hypothesis profiles only. Fixtures live next to the tests that use them.

`ci` is the default and always draws the same examples; HYPOTHESIS_PROFILE=dev draws new ones each run.
"""

import os

from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=100, database=None, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile("dev", deadline=None, max_examples=300, suppress_health_check=_SLOW_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
