from pathlib import Path

import pytest
from fakegpu import cluster
from fakegpu.cluster import HOST_LABELS, ClusterError, ClusterSpec

DATA = Path(__file__).resolve().parents[2] / "verification" / "data"


def test_the_seeds_example():
    spec = cluster.load(DATA / "cluster_valid.yaml")
    assert (spec.world_size, spec.node_count, spec.name, spec.default_backend) == (4, 2, "dev-cluster", "nccl")
    assert [spec.node_index(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert [spec.profile_of(rank).id for rank in range(4)] == ["a100", "a100", "h100", "h100"]
    assert (spec.intra_node.type, spec.intra_node.bandwidth_gbps, spec.intra_node.latency_us) == ("nvlink", 300, 3)
    inter = spec.inter_node
    assert (inter.type, inter.bandwidth_gbps, inter.latency_us, inter.oversubscription) == ("infiniband", 200, 15, 1.5)


def test_ranks_need_not_be_in_node_order():
    spec = cluster.load(DATA / "cluster_tcp_4r.yaml")
    assert [spec.node_index(rank) for rank in range(4)] == [0, 1, 0, 1]
    assert spec.profile_of(1).id == "rtx3090ti"


def test_default_cluster():
    spec = ClusterSpec.default(nodes=2, gpus_per_node=4, profile="h100")
    assert (spec.world_size, spec.node_count) == (8, 2)
    assert spec.profile_of(7).id == "h100"
    with pytest.raises(ClusterError, match="0 nodes"):
        ClusterSpec.default(nodes=0)
    with pytest.raises(ClusterError, match="expected 2"):
        ClusterSpec.default(gpus_per_node=2, profile=["h100"])


def test_placement_of_the_first_world():
    spec = ClusterSpec.from_placement([7, 3, 7, 3])
    assert [node.ranks for node in spec.nodes] == [(1, 3), (0, 2)]
    assert ClusterSpec.from_placement([-1, -1]).node_count == 1
    hosts = ClusterSpec.from_placement([HOST_LABELS + 1, HOST_LABELS + 1, HOST_LABELS])
    assert [node.ranks for node in hosts.nodes] == [(0, 1), (2,)]


def test_one_node_needs_no_inter_node_fabric(tmp_path):
    path = tmp_path / "one.yaml"
    text = (DATA / "cluster_proxy_1r.yaml").read_text()
    path.write_text(text[: text.index("  inter_node:")])
    assert cluster.load(path).world_size == 1


def test_an_unreadable_file_is_one_line(tmp_path):
    with pytest.raises(ClusterError, match="cannot be read"):
        cluster.load(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="UTF-8"):
        cluster.load(binary)


def test_a_tag_cannot_run_code(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("version: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ClusterError):
        cluster.load(path)


def test_a_control_character_is_refused_in_one_line(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\ncluster: {name: a\x00b}\n")
    with pytest.raises(cluster.ClusterError) as caught:
        cluster.load(path)
    assert "not valid YAML" in str(caught.value) and "\n" not in str(caught.value)
