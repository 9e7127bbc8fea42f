"""Training steps on one fake device equal the CPU's: models, optimizers, mixed precision."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 3


def train(model, x, y, make_optimizer, device, dtype=None, clip=None):
    model, x, y = copy.deepcopy(model).to(device), x.to(device), y.to(device)
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def same(model, x, y, make_optimizer, dtype=None, clip=1.0, **tolerance):
    expected = train(model, x, y, make_optimizer, "cpu", dtype, clip)
    found = train(model, x, y, make_optimizer, "cuda", dtype, clip)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def mlp():
    torch.manual_seed(0)
    return (nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)),
            torch.randn(16, 20), torch.randint(0, 5, (16,)))


def conv():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(8, 16, 3, stride=2, groups=2), nn.GroupNorm(4, 16), nn.SiLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return model, torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8,))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = kind(12, 16, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


def recurrent(kind):
    torch.manual_seed(2)
    return Recurrent(kind), torch.randn(4, 7, 12), torch.randint(0, 5, (4,))


def adamw(p):
    return torch.optim.AdamW(p, lr=1e-2)


def sgd(p):
    return torch.optim.SGD(p, lr=0.1, momentum=0.9)


EXACT = {"rtol": 1e-6, "atol": 1e-7}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def case_mlp_sgd():
    same(*mlp(), sgd, **EXACT)


def case_mlp_optimizers_foreach_and_fused():
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        same(*mlp(), lambda p, options=options: torch.optim.AdamW(p, lr=1e-2, **options), rtol=1e-5, atol=1e-5)
        same(*mlp(), lambda p, options=options: torch.optim.SGD(p, lr=0.1, momentum=0.9, **options), **CLOSE)
    for kind in (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.NAdam, torch.optim.RAdam):
        same(*mlp(), lambda p, kind=kind: kind(p, lr=1e-2), rtol=1e-4, atol=1e-5)


def case_conv_net():
    same(*conv(), sgd, **CLOSE)


def case_conv_net_channels_last():
    model, x, y = conv()
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    same(model, x, y, sgd, **CLOSE)
    assert model.cuda()(x.cuda()).device.type == "cuda"
    assert torch.nn.functional.relu(x.cuda()).is_contiguous(memory_format=torch.channels_last)


def case_lstm():
    same(*recurrent(nn.LSTM), sgd, **CLOSE)


def case_gru():
    same(*recurrent(nn.GRU), sgd, **CLOSE)


def case_rnn():
    same(*recurrent(nn.RNN), sgd, **CLOSE)


def case_recurrent_in_half_precision():
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype in (torch.float16, torch.bfloat16):
            torch.manual_seed(3)
            model, x = kind(6, 8), torch.randn(5, 3, 6)
            want = model(x)[0]
            got = copy.deepcopy(model).to("cuda", dtype)(x.to("cuda", dtype))[0]
            assert got.dtype is dtype
            torch.testing.assert_close(got.float().cpu(), want, rtol=3e-2, atol=3e-2)


def case_packed_sequences():
    torch.manual_seed(4)
    model, x = nn.LSTM(6, 8, 2), torch.randn(5, 3, 6)
    lengths = torch.tensor([5, 3, 2])

    def last(m, data):
        return m(nn.utils.rnn.pack_padded_sequence(data, lengths))[1][0]

    torch.testing.assert_close(last(copy.deepcopy(model).cuda(), x.cuda()).cpu(), last(model, x))


def case_autocast_bfloat16():
    same(*mlp(), sgd, torch.bfloat16, rtol=1e-2, atol=1e-3)
    same(*conv(), sgd, torch.bfloat16, rtol=5e-2, atol=5e-3)


def case_autocast_float16_with_scaler():
    same(*mlp(), sgd, torch.float16, rtol=1e-2, atol=1e-3)


def case_overflow_skips_the_step_and_halves_the_scale():
    model = nn.Linear(4, 1).cuda()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    scaler.scale(model(torch.full((2, 4), float("inf"), device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before) and scaler.get_scale() == 2.0**9


def case_transformer_encoder():
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32 * 8, 5))
    same(model, torch.randn(4, 8, 32), torch.randint(0, 5, (4,)), sgd, **CLOSE)


def case_norms():
    torch.manual_seed(6)
    x = torch.randn(4, 6, 8)
    for norm in (nn.RMSNorm(8), nn.RMSNorm((6, 8)), nn.RMSNorm((4, 6, 8)), nn.LayerNorm(8), nn.InstanceNorm1d(6)):
        results = []
        for device in ("cpu", "cuda"):
            module = copy.deepcopy(norm).to(device)
            data = x.to(device).detach().requires_grad_()
            module(data).square().sum().backward()
            results.append([data.grad.cpu(), *[p.grad.cpu() for p in module.parameters()]])
        for a, b in zip(*results):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


def case_cudnn_says_what_it_is():
    assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 9000
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.enabled = True
    same(*conv(), sgd, **CLOSE)
    with torch.backends.cudnn.flags(enabled=False):
        same(*conv(), sgd, **CLOSE)


def case_losses():
    torch.manual_seed(7)
    logits = torch.randn(12, 3, 6).log_softmax(-1)
    targets = torch.randint(1, 6, (3, 4))
    losses = []
    for device in ("cpu", "cuda"):
        data = logits.to(device).detach().requires_grad_()
        loss = F.ctc_loss(data, targets.to(device), torch.tensor([12, 10, 9]), torch.tensor([4, 3, 2]))
        loss.backward()
        losses.append((loss.detach().cpu(), data.grad.cpu()))
    for a, b in zip(*losses):
        torch.testing.assert_close(b, a)


def case_gradients_through_both_devices():
    w = torch.randn(3, 3, requires_grad=True)
    (w.cuda() @ w.cuda()).sum().cpu().mul(2).backward()
    v = w.detach().clone().requires_grad_()
    (v @ v).sum().mul(2).backward()
    torch.testing.assert_close(w.grad, v.grad)


def case_deterministic_mode():
    torch.use_deterministic_algorithms(True)
    try:
        same(*mlp(), sgd, **EXACT)
        x = torch.zeros(4, device="cuda").index_add_(0, torch.tensor([1, 1], device="cuda"),
                                                     torch.ones(2, device="cuda"))
        assert x.tolist() == [0.0, 2.0, 0.0, 0.0]
        image = torch.ones(1, 1, 2, 2, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="adaptive_avg_pool2d_backward_cuda does not have a deterministic"):
            nn.AdaptiveAvgPool2d(2)(torch.cat([image, image], -1)).sum().backward()
        with pytest.raises(RuntimeError, match="_histc_cuda with floating point input does not have a deterministic"):
            torch.histc(torch.ones(3, device="cuda"))
        ones = torch.ones(2, device="cuda")
        torch.zeros(3, device="cuda").scatter_reduce_(0, torch.tensor([1, 1], device="cuda"), ones, "sum")
        with pytest.raises(RuntimeError, match="scatter_reduce_cuda_prod_ does not have a deterministic"):
            torch.zeros(3, device="cuda").scatter_reduce_(0, torch.tensor([1, 1], device="cuda"), ones, "prod")
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
            torch.zeros(3, device="cuda").put_(torch.tensor([1, 1], device="cuda"), ones, accumulate=True)
        cube = torch.ones(1, 1, 2, 2, 2, device="cuda", requires_grad=True)
        nn.functional.max_pool3d(cube, 2).sum().backward()
        nn.functional.pad(image, (1, 1, 1, 1), mode="replicate").sum().backward()
        index, weight = torch.tensor([[0, 1]], device="cuda"), torch.ones(3, 2, device="cuda", requires_grad=True)
        torch.bincount(index[0])
        with pytest.raises(RuntimeError, match="_bincount_cuda does not have a deterministic"):
            torch.bincount(index[0], torch.ones(2, device="cuda"))
        torch.ones(3, device="cuda").median()
        with pytest.raises(RuntimeError, match="median CUDA with indices output does not have a deterministic"):
            torch.ones(3, device="cuda").median(0)
        nn.functional.embedding_bag(index, weight, mode="sum").sum().backward()
        with pytest.raises(RuntimeError, match="embedding_bag_backward_cuda_max does not have a deterministic"):
            nn.functional.embedding_bag(index, weight, mode="max").sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
