"""CUDA graphs: what a launch computes equals the same operators run eagerly, and capturing changes nothing."""

import copy

import pytest
import torch
import torch.nn as nn

CUDA = torch.device("cuda", 0)


def captured(body):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    return graph, result


def case_capturing_changes_nothing_and_a_launch_does():
    x = torch.zeros(4, device=CUDA)

    def body():
        x.add_(1)
        return x * 2

    graph, y = captured(body)
    assert x.tolist() == [0.0] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [2.0] * 4 and y.tolist() == [4.0] * 4


def _trains_as_eager(name, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(CUDA)
    twin = copy.deepcopy(model)
    batches = [(torch.randn(5, 8, device=CUDA), torch.randn(5, 4, device=CUDA)) for _ in range(6)]
    x, y = torch.empty(5, 8, device=CUDA), torch.empty(5, 4, device=CUDA)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)

    def step():
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in batches[:3]:
            x.copy_(batch[0])
            y.copy_(batch[1])
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph, loss = captured(step)
    losses = []
    for batch in batches[3:]:
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()
        losses.append(loss.item())
    optimizer = getattr(torch.optim, name)(twin.parameters(), lr=0.01, **options)
    expected = []
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        one = (twin(batch[0]) - batch[1]).pow(2).mean()
        one.backward()
        optimizer.step()
        expected.append(one.item())
    assert losses == expected[3:]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))


def case_a_step_with_sgd():
    _trains_as_eager("SGD", momentum=0.9)


def case_a_step_with_adamw():
    _trains_as_eager("AdamW", capturable=True)


def case_a_step_with_fused_adamw():
    _trains_as_eager("AdamW", capturable=True, fused=True)


def case_a_step_with_foreach_adam():
    _trains_as_eager("Adam", capturable=True, foreach=True)


def case_random_numbers_advance_with_every_launch():
    x = torch.ones(1000, device=CUDA)
    graph, y = captured(lambda: nn.functional.dropout(x, 0.5))
    torch.cuda.manual_seed(1)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)
    torch.cuda.manual_seed(1)
    graph.replay()
    assert torch.equal(first, y)


def case_graphed_callables():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(CUDA)
    twin = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device=CUDA),))
    for _ in range(3):
        model.zero_grad()
        twin.zero_grad()
        x = torch.randn(4, 8, device=CUDA)
        out, expected = graphed(x), twin(x)
        out.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(out, expected)
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad)


def case_running_statistics_change_by_launches_only():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(CUDA)
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8, device=CUDA)
    graph, y = captured(lambda: model(x))
    assert model[1].running_mean.tolist() == [0.0] * 4 and model[1].num_batches_tracked.item() == 0
    graph.replay()
    torch.testing.assert_close(y, twin(x))
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    assert model[1].num_batches_tracked.item() == 1


def case_attention():
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(CUDA), torch.randn(2, 5, 16, device=CUDA)
    graph, y = captured(lambda: model(x))
    x.copy_(torch.randn(2, 5, 16, device=CUDA))
    graph.replay()
    torch.testing.assert_close(y, model(x))


def case_two_graphs_share_a_pool():
    x = torch.ones(3, device=CUDA)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = x * 2
    with torch.cuda.graph(second, pool=first.pool()):
        z = y + 1
    x.fill_(5)
    first.replay()
    second.replay()
    assert z.tolist() == [11.0] * 3


def case_a_second_stream_takes_part():
    x, side = torch.ones(3, device=CUDA), torch.cuda.Stream()

    def body():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return z * 3

    graph, w = captured(body)
    x.fill_(2)
    graph.replay()
    assert w.tolist() == [15.0] * 3


def case_copies_with_pinned_memory():
    source, target, x = torch.arange(4.0).pin_memory(), torch.zeros(4).pin_memory(), torch.zeros(4, device=CUDA)

    def body():
        x.copy_(source, non_blocking=True)
        target.copy_(x + 1, non_blocking=True)

    graph, _ = captured(body)
    assert target.tolist() == [0.0] * 4
    source.mul_(10)
    graph.replay()
    torch.cuda.synchronize()
    assert target.tolist() == [1.0, 11.0, 21.0, 31.0]


def case_scalars_in_pinned_memory_are_read_and_written_at_every_launch():
    source, target, x = torch.tensor(1.0).pin_memory(), torch.tensor(0.0).pin_memory(), torch.zeros((), device=CUDA)

    def body():
        x.copy_(source, non_blocking=True)
        target.copy_(x + 1, non_blocking=True)

    graph, _ = captured(body)
    source.fill_(41.0)
    graph.replay()
    torch.cuda.synchronize()
    assert target.item() == 42.0


def _refused(body):
    x = torch.ones(3, device=CUDA)
    with pytest.raises(RuntimeError, match="captur"):
        captured(lambda: body(x))
    assert (x + 1).tolist() == [2.0] * 3  # the stream works again


def case_a_host_read_is_refused():
    _refused(lambda x: x[0].item())


def case_a_blocking_copy_is_refused():
    _refused(lambda x: x.cpu())


def case_a_shape_that_depends_on_values_is_refused():
    _refused(lambda x: x.nonzero())
    _refused(lambda x: x[x > 0])


def case_waiting_inside_is_refused():
    _refused(lambda x: torch.cuda.synchronize())
    _refused(lambda x: torch.cuda.current_stream().synchronize())


def case_a_failing_node_is_told():
    index, table = torch.tensor([1], device=CUDA), torch.arange(3.0, device=CUDA)
    graph, _ = captured(lambda: table[index])
    index.fill_(7)
    with pytest.raises(RuntimeError, match="aten::index in a graph's launch"):
        graph.replay()


def case_a_capture_lets_go_what_the_program_lets_go():
    x = torch.ones(1 << 18, device=CUDA)  # 1 MiB

    def body():
        y = x
        for _ in range(100):
            y = y * 1.01 + 0.5
        return y

    expected = body()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    graph, y = captured(body)
    assert torch.cuda.memory_reserved() - before <= 24 << 20  # of 200 results, at most the segments of a few
    graph.replay()
    assert torch.equal(y, expected)
    x.mul_(2)
    graph.replay()
    assert torch.equal(y, body())


def case_an_input_dropped_inside_the_capture_is_there_at_the_first_launch():
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
        given = [torch.full((1 << 16,), 3.0, device=CUDA)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id, stream=side):
        doubled = given[0] * 2
        address = given.pop().data_ptr()
        over = doubled + 100
        again = over + 1
    assert abs(over.data_ptr() - address) < 1 << 18  # the pool gave the input's memory to a result
    graph.replay()
    assert doubled.unique().tolist() == [6.0] and again.unique().tolist() == [107.0]


def case_an_output_that_the_operator_sizes_is_written_at_its_captured_place():
    table = torch.arange(10.0, device=CUDA)
    graph, picked = captured(lambda: table[torch.arange(3, 6, device=CUDA)])
    table.add_(1)
    graph.replay()
    assert picked.tolist() == [4.0, 5.0, 6.0]


def case_memory_freed_after_the_capture_is_named():
    x = torch.ones(32 << 20, dtype=torch.uint8, device=CUDA)
    graph, _ = captured(lambda: x + 1)
    del x
    torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="was freed after the capture"):
        graph.replay()
