import pytest
import yaml
from fakegpu import profiles


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_is_valid(name):
    gpu = profiles.load(name)
    assert gpu.id == name
    # bandwidth = 2 x clock x bus width, as cudaDeviceProp users compute it
    rate = gpu.memory_bandwidth_gbps * 1e3 / (gpu.memory_clock_mhz * gpu.memory_bus_bits)
    assert rate == pytest.approx(2, rel=0.01), "two transfers per memory clock"


@pytest.mark.parametrize("name", ["a100", "h100", "rtx-pro-5000-blackwell", "rtx3090ti"])
def test_the_seeds_profiles_exist(name):
    assert profiles.exists(name)


def test_unknown_name_gives_near_names():
    with pytest.raises(profiles.ProfileError, match="h100"):
        profiles.load("h1000")


@pytest.mark.parametrize(
    ("key", "value"),
    [("sms", 0), ("sms", "many"), ("id", "other"), ("compute_capability", "9"), ("nvlink", {"version": 4}),
     ("source", ""), ("generation", "fermi"), ("pcie", None), ("power_watts", True)],
    ids=str,
)
def test_a_wrong_value_is_named(tmp_path, key, value):
    data = yaml.safe_load((profiles.directory() / "h100.yaml").read_text())
    data[key] = value
    path = tmp_path / "h100.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(profiles.ProfileError, match=f"h100.yaml: {key}: found"):
        profiles.read(path)


def test_missing_and_unknown_keys_are_named(tmp_path):
    data = yaml.safe_load((profiles.directory() / "h100.yaml").read_text())
    data["smss"] = data.pop("sms")
    path = tmp_path / "h100.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(profiles.ProfileError, match=r"\['sms'\].*\['smss'\]"):
        profiles.read(path)
