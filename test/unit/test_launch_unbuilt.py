"""Settings without anything behind them are refused by name, never ignored."""

import pytest

from fakegpu.errors import SettingsError
from fakegpu.launch.unbuilt import refuse_unbuilt
from fakegpu.settings import Settings

REFUSED = [
    {"FAKEGPU_MODE": "hybrid"},
    {"FAKEGPU_MODE": "hybrid", "FAKEGPU_DIST_MODE": "proxy"},
]


@pytest.mark.parametrize("environment", REFUSED, ids=lambda e: "-".join(f"{k[8:]}={v}" for k, v in e.items()))
def test_an_unbuilt_setting_is_refused_with_its_variable_and_value(environment):
    with pytest.raises(SettingsError) as refusal:
        refuse_unbuilt(Settings.from_env(environment))
    assert any(value in str(refusal.value) for value in environment.values())
    assert "FAKEGPU_" in str(refusal.value)


@pytest.mark.parametrize(
    "environment",
    [{}, {"FAKEGPU_DIST_MODE": "disabled"}, {"FAKEGPU_MODE": "passthrough", "FAKEGPU_DIST_MODE": "passthrough"}],
    ids=["defaults", "no-communication", "hands-off"],
)
def test_what_is_built_passes(environment):
    refuse_unbuilt(Settings.from_env(environment))
