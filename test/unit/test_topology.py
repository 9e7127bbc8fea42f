import pytest
from fakegpu.cluster import ClusterSpec
from fakegpu.timing import Operation, TimeModel, traffic
from fakegpu.topology import Topology, double_tree, ring_edges, tree_load
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(1, 40)


@given(sizes)
def test_both_trees_span_every_node(nodes):
    for tree in double_tree(nodes):
        assert len(tree) == nodes - 1
        parent = dict(tree)
        assert len(parent) == nodes - 1  # one parent each
        roots = set(range(nodes)) - parent.keys()
        assert len(roots) == 1
        for node in range(nodes):
            seen = set()
            while node in parent:
                assert node not in seen, "a cycle"
                seen.add(node)
                node = parent[node]
            assert node in roots


@given(st.integers(2, 200))
def test_no_node_carries_more_than_twice_the_payload(nodes):
    assert 1 <= tree_load(nodes) <= 2


def test_placement_groups_ranks_by_node():
    topology = Topology(ClusterSpec.from_placement([0, 1, 0, 1, 2]))
    place = topology.placement((4, 1, 0, 2, 3))
    assert place.ring == (4, 1, 3, 0, 2)
    assert (place.nodes, place.ranks_per_node, place.max_per_node) == ((2, 1, 0), (1, 2, 2), 2)
    assert ring_edges([7]) == []


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 300), st.sampled_from(["ring", "tree", "nvls", "nvlstree"]))
def test_all_reduce_traffic_reaches_everybody(nodes, per_node, count, algorithm):
    """Every rank's data must leave it and the sums must come back: at least the payload once in and once out."""
    spec = ClusterSpec.default(nodes, per_node, "h100")
    n = nodes * per_node
    operation = Operation("all_reduce", tuple(range(n)), count, 4)
    moved = traffic.of(operation, Topology(spec).placement(operation.ranks), algorithm)
    if n == 1 or count < n:
        return
    for rank in range(n):
        assert sum(size for (src, _), size in moved.items() if src == rank) >= 4 * (count // n)
        assert sum(size for (_, dst), size in moved.items() if dst == rank) >= 4 * (count // n)


@given(st.integers(2, 16), st.integers(1, 100))
def test_pat_delivers_every_block(nodes, count):
    operation = Operation("all_gather", tuple(range(nodes)), count, 2)
    placement = Topology(ClusterSpec.default(nodes, 1, "h100")).placement(operation.ranks)
    moved = traffic.of(operation, placement, "pat")
    for rank in range(nodes):
        assert sum(size for (_, dst), size in moved.items() if dst == rank) == 2 * count * (nodes - 1)


@pytest.mark.parametrize("kind", ["barrier", "signal"])
def test_control_operations_move_nothing(kind):
    model = TimeModel(ClusterSpec.default(2, 1))
    operation = Operation(kind, (0, 1), 0, 1, src=0, dst=1)
    assert model.traffic(operation, model.estimate(operation).algorithm) == {}


def test_a_rank_beyond_the_cluster_counts_for_the_last_node():
    assert ClusterSpec.default(2, 2).node_index(99) == 1
