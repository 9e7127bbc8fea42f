"""Variables, rank discovery and addresses: values as documented, bad ones refused by name."""

import pytest

from fakegpu.errors import SettingsError
from fakegpu.settings import (
    VARIABLES,
    RankInfo,
    Settings,
    data_dir,
    discover_rank,
    launched_ranks,
    parse_address,
    parse_bytes,
)

DOCUMENTED_FLAGS = """--mode --dist-mode --cluster-config --nodes --gpus-per-node --coordinator-transport
--coordinator-addr --device-count --devices --profile --timeout-ms --staging-chunk-bytes --staging-force-socket --same-host-shm
--report --markdown-report --report-max-operations --trace --html --pace --faults --token-file --strict --oom-policy
--unsupported-api --lib-dir --verbose --quiet""".split()
DOCUMENTED_NAMES = """MODE DIST_MODE CLUSTER_CONFIG COORDINATOR_TRANSPORT COORDINATOR_ADDR COORDINATOR_TIMEOUT_MS
CLUSTER_REPORT_PATH CLUSTER_REPORT_MARKDOWN_PATH CLUSTER_REPORT_MAX_OPERATIONS STAGING_CHUNK_BYTES
STAGING_FORCE_SOCKET DEVICE_COUNT PROFILE PROFILES OOM_POLICY UNSUPPORTED_API REAL_NCCL_PATH REAL_CUDART_PATH
NCCL_VERSION DUPLICATE_GPU P2P_EAGER_BYTES NCCL_FAULT_RANK NCCL_FAULT_SEQNO NCCL_FAULT_OPERATION TOKEN""".split()


def test_every_documented_flag_and_variable_is_in_the_table():
    assert set(DOCUMENTED_FLAGS) <= {v.flag for v in VARIABLES}
    assert set(DOCUMENTED_NAMES) <= {v.name for v in VARIABLES}


def test_names_fields_and_flags_are_unique():
    for attribute in ("name", "field"):
        values = [getattr(v, attribute) for v in VARIABLES]
        assert len(values) == len(set(values))
    flags = [v.flag for v in VARIABLES if v.flag]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_default_applies_and_fits_its_own_rule(variable):
    assert getattr(Settings.from_env({}), variable.field) == variable.default
    if variable.default not in (None, ""):
        assert variable.parse(str(variable.default)) == variable.default
    assert variable.help and not variable.help.endswith(".")


def test_seed_values():
    settings = Settings.from_env({})
    assert (settings.mode, settings.dist_mode, settings.coordinator_transport) == ("simulate", "simulate", "unix")
    assert (settings.timeout_ms, settings.max_operations, settings.device_count) == (1000, 4096, 8)
    assert (settings.nccl_version, settings.eager_bytes) == (23007, 1 << 20)


def test_given_and_to_env_round_trip():
    environ = {
        "FAKEGPU_MODE": "hybrid",
        "FAKEGPU_STAGING_CHUNK_BYTES": "4MiB",
        "FAKEGPU_STAGING_FORCE_SOCKET": "1",
        "FAKEGPU_TRACE": "",
        "OTHER": "x",
    }
    settings = Settings.from_env(environ).override(timeout_ms=600000, trace=None)
    assert settings.given == {"mode", "staging_chunk_bytes", "staging_force_socket", "timeout_ms"}
    assert settings.to_env() == {
        "FAKEGPU_MODE": "hybrid",
        "FAKEGPU_STAGING_CHUNK_BYTES": "4194304",
        "FAKEGPU_STAGING_FORCE_SOCKET": "1",
        "FAKEGPU_COORDINATOR_TIMEOUT_MS": "600000",
    }
    assert Settings.from_env(settings.to_env()) == settings


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MODE", "fast", "simulate or hybrid or passthrough"),
        ("COORDINATOR_TRANSPORT", "udp", "unix or tcp"),
        ("COORDINATOR_TIMEOUT_MS", "0", "at least 1"),
        ("COORDINATOR_TIMEOUT_MS", "1s", "an integer"),
        ("DEVICE_COUNT", "-1", "at least 1"),
        ("DEVICE_COUNT", "1_0", "an integer"),
        ("STAGING_CHUNK_BYTES", "1.5MiB", "KiB, MiB"),
        ("STAGING_FORCE_SOCKET", "maybe", "0 or 1"),
    ],
)
def test_bad_value_names_variable_found_and_expected(name, value, expected):
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({f"FAKEGPU_{name}": value})
    assert f"FAKEGPU_{name}={value}: expected" in caught.value.text and expected in caught.value.text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("4k", 4096), ("4KiB", 4096), ("2 MiB", 2 << 20), ("1G", 1 << 30), ("x", None), ("iB", None)],
)
def test_parse_bytes(text, value):
    assert parse_bytes(text) == value


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}

HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, RankInfo()),
        (TORCHRUN, RankInfo(3, 4, 1, 2, 1)),
        ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, RankInfo(3, 4, 1, 2, 1, 2)),
        ({"RANK": "3"}, RankInfo()),
        (SLURM, RankInfo(5, 8, 1, -1, 2)),
        ({**SLURM, **TORCHRUN}, RankInfo(3, 4, 1, 2, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, RankInfo(0, 2)),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}, RankInfo(5, 8, 1, -1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", **HYDRA}, RankInfo(2, 4, 0, 2)),
        ({f"MV2_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")} | {"MV2_COMM_WORLD_SIZE": "2"},
         RankInfo(1, 2, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            },
            RankInfo(1, 2, 0, 1),
        ),
    ],
    ids=["none", "torchrun", "elastic", "half", "slurm", "torchrun-under-slurm", "pmi", "slurm-pmi",
         "hydra-under-slurm", "mvapich", "open-mpi"],
)
def test_rank_discovery(environ, expected):
    assert discover_rank(environ) == expected


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({}, None),
        (TORCHRUN, "torchrun"),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        (HYDRA, "Hydra"),
        (SLURM, None),
        (SLURM | {"SLURM_STEP_ID": "0"}, "Slurm"),
    ],
    ids=["plain", "torchrun", "one-rank", "hydra", "batch-script", "srun-step"],
)
def test_which_processes_are_one_of_several_ranks(environ, launcher):
    found = launched_ranks(environ)
    assert (found and found[0]) == launcher


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4, WORLD_SIZE=4: expected 0 <= RANK < WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK=x: expected an integer"),
    ],
)
def test_bad_rank_is_refused(environ, text):
    with pytest.raises(SettingsError, match=text):
        discover_rank(environ)


@pytest.mark.parametrize("text", ["/tmp/c.sock", "127.0.0.1:29591", "[::1]:80", "host:0"])
def test_address_round_trip(text):
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "transport", "expected"),
    [
        ("c.sock", "unix", "absolute path"),
        ("/" + "x" * 120, "unix", "at most 107"),
        ("localhost", "tcp", "host:port"),
        (":80", "tcp", "host:port"),
        ("host:99999", "tcp", "host:port"),
        ("/tmp/c.sock", "tcp", "host:port"),
    ],
)
def test_bad_address_is_refused(text, transport, expected):
    with pytest.raises(SettingsError, match=expected):
        parse_address(text, transport)


def test_missing_address_names_the_variable():
    with pytest.raises(SettingsError, match="FAKEGPU_COORDINATOR_ADDR is not set"):
        Settings.from_env({}).address()


def test_secret_comes_from_token_or_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("abc\n", encoding="utf-8")
    assert Settings.from_env({"FAKEGPU_TOKEN_FILE": str(file)}).secret() == "abc"
    assert Settings.from_env({"FAKEGPU_TOKEN": "x", "FAKEGPU_TOKEN_FILE": str(file)}).secret() == "x"
    with pytest.raises(SettingsError, match="TOKEN_FILE=.*not readable"):
        Settings.from_env({"FAKEGPU_TOKEN_FILE": str(tmp_path / "none")}).secret()


def test_data_dir_holds_the_profiles():
    assert (data_dir() / "gpus").is_dir()
