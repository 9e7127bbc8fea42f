"""Time of a training step on one fake device beside the same step on the CPU: a small GPT and a ResNet-18-sized net.

    ./fgpu --device-count 1 python verification/benchmarks/training_step.py [--check]

The two run in turn, medians of CPU time; --check fails above 1.3 times the CPU.
"""

import argparse
import copy
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LIMIT = 1.3
ROUNDS = 5
WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY = 256, 4, 4, 128, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
                                  nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                                             nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def gpt():
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *[Block() for _ in range(LAYERS)],
                          nn.Linear(WIDTH, VOCABULARY), nn.Flatten(0, 1))
    tokens = torch.randint(0, VOCABULARY, (8, LENGTH))
    return model, tokens, tokens.flatten()


def resnet():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return model, torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))


def stepper(model, x, y, device: str):
    model, x, y = copy.deepcopy(model).to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def seconds(step) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 above the limit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0.0
    for name, make in (("GPT 4x256, 8x128 tokens", gpt), ("ResNet-18, 16 of 64x64", resnet)):
        torch.manual_seed(0)
        parts = make()
        host, fake = stepper(*parts, "cpu"), stepper(*parts, "cuda")
        host(), fake()
        pairs = [(seconds(host), seconds(fake)) for _ in range(ROUNDS)]
        cpu, cuda = (statistics.median(times) for times in zip(*pairs))
        worst = max(worst, cuda / cpu)
        print(f"{name:26} CPU {cpu * 1e3:8.1f} ms  fake device {cuda * 1e3:8.1f} ms  ratio {cuda / cpu:.2f}")
    print(f"largest ratio {worst:.2f} (limit {LIMIT})")
    return int(arguments.check and worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
