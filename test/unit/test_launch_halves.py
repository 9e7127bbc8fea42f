"""A job launched once per node: each launch has its node's GPUs, or is refused when nothing says which node it is."""

from pathlib import Path

import pytest
from fakegpu.errors import SettingsError
from fakegpu.launch.halves import fit_node
from fakegpu.settings import Settings

MIXED = str(Path(__file__).resolve().parents[2] / "verification/data/cluster_valid.yaml")  # 2 a100, then 2 h100
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
ONE_HOST = {**MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
TORCHRUN = ["torchrun", "--nnodes", "2", "--node-rank", "1", "train.py"]


def fit(command, environ=None, **fields):
    return fit_node(command, Settings().override(cluster_config=MIXED, **fields), environ or {}).profiles


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        (TORCHRUN, {}, "h100:1,h100:1"),
        (["torchrun", "--nnodes=2", "--node_rank=0", "train.py"], {}, "a100:1,a100:1"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "--node_rank=1", "t.py"], {}, "h100:1,h100:1"),
        (["torchrun", "--nproc-per-node", "4", "train.py"], {}, None),
        (["./train", "--nnodes", "2", "--node-rank", "1"], {}, None),
        (["./train"], SLURM, "h100:1,h100:1"),
        (["./train"], MPI, "h100:1,h100:1"),
        (["./train"], ONE_HOST, None),
    ],
    ids=["torchrun", "underscores", "module", "one-node", "other-program", "slurm", "mpi", "mpi-on-one-host"],
)
def test_devices_are_the_nodes_own(command, environ, expected):
    assert (fit(command, environ) or None) == expected


def test_part_of_the_nodes_gpus_and_the_users_choice():
    assert fit(TORCHRUN, device_count=1) == "h100:1"
    assert not fit(TORCHRUN, profile="t4")
    assert fit(TORCHRUN, profiles="t4:2") == "t4:2"
    assert not fit(["./train"], device_count=4)


@pytest.mark.parametrize(
    ("command", "count", "text"),
    [
        (["torchrun", "--nnodes=2", "--rdzv-backend=c10d", "t.py"], None, "torchrun --nnodes without --node-rank is a part"),
        (["./train"], 2, "whose GPUs differ, and nothing says which part"),
        (TORCHRUN, 3, "--device-count 3, but node 'node1' of .* has 2"),
        (["torchrun", "--nnodes=9", "--node-rank=7", "t.py"], 2, "node 7 of the launch: .* describes 2 nodes"),
    ],
    ids=["dynamic-rendezvous", "unknown-part", "too-many", "no-such-node"],
)
def test_refused(command, count, text):
    with pytest.raises(SettingsError, match=text):
        fit(command, **({} if count is None else {"device_count": count}))
