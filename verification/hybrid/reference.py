"""Gradients and parameters of a two-layer linear network, worked out by hand in exact arithmetic. No torch here.

Every value is a small multiple of a power of two, so that it has no rounding in float32, float16 or bfloat16, and a
comparison can ask for equality. The loss of one sample is c . (B (A x + a) + b) with c = (1, -1, 1).
"""

from fractions import Fraction

IN, HIDDEN, OUT = 3, 4, 3
SHAPES = {"inner.weight": (HIDDEN, IN), "inner.bias": (HIDDEN,), "outer.weight": (OUT, HIDDEN), "outer.bias": (OUT,)}
LOSS = (1, -1, 1)
LEARNING_RATE = 1
Matrix = list[list[Fraction]]


def number(index: int, offset: int) -> Fraction:
    """-1/2, 0 or 1/2."""
    return Fraction((2 * index + offset) % 3 - 1, 2)


def initial(name: str) -> list:
    """A parameter before training, nested as its shape."""
    shape, offset = SHAPES[name], len(name)
    if len(shape) == 1:
        return [number(i, offset) for i in range(shape[0])]
    return [[number(i * shape[1] + i + j, offset) for j in range(shape[1])] for i in range(shape[0])]


def sample(rank: int, step: int, micro: int = 0) -> list[Fraction]:
    """What one rank computes with in one step: each rank, step and micro-batch has its own."""
    return [Fraction((3 * rank + 2 * step + 5 * micro + j * (rank + 1)) % 3 - 1) for j in range(IN)]


def gradient(parameters: dict, x: list[Fraction]) -> dict:
    """Derivative of the loss of one sample, by the chain rule."""
    inner, outer = parameters["inner.weight"], parameters["outer.weight"]
    hidden = [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(inner, parameters["inner.bias"])]
    back = [sum(LOSS[o] * outer[o][h] for o in range(OUT)) for h in range(HIDDEN)]
    return {
        "inner.weight": [[d * v for v in x] for d in back],
        "inner.bias": back,
        "outer.weight": [[c * h for h in hidden] for c in LOSS],
        "outer.bias": [Fraction(c) for c in LOSS],
    }


def combine(function, *trees):
    """function over the corresponding numbers of equally nested lists or dictionaries."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: combine(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list):
        return [combine(function, *items) for items in zip(*trees)]
    return function(*trees)


def mean(trees: list, count: int):
    """The trees' sum over `count`."""
    return combine(lambda *values: sum(values, Fraction(0)) / count, *trees)


def train(world: int, steps: int, micro: int = 1) -> list[dict]:
    """Per step: the averaged gradient and the parameters after it, of plain data parallelism with SGD."""
    parameters = {name: initial(name) for name in SHAPES}
    record = []
    for step in range(steps):
        local = [gradient(parameters, sample(rank, step, m)) for rank in range(world) for m in range(micro)]
        average = mean(local, world)
        parameters = combine(lambda p, g: p - LEARNING_RATE * g, parameters, average)
        record.append({"gradients": average, "parameters": parameters})
    return record


def train_branches(world: int, steps: int) -> list[dict]:
    """As train, but odd ranks use a second outer layer, `other`; a rank's unused layer counts as a gradient of zero."""
    parameters = {name: initial(name) for name in SHAPES}
    parameters |= {name.replace("outer", "other"): initial(name) for name in SHAPES if name.startswith("outer")}
    zeros = combine(lambda value: value * 0, parameters)
    record = []
    for step in range(steps):
        local = []
        for rank in range(world):
            used = "other" if rank % 2 else "outer"
            seen = {name: parameters[name.replace("outer", used)] for name in SHAPES}
            found = gradient(seen, sample(rank, step))
            local.append(zeros | {name.replace("outer", used): value for name, value in found.items()})
        average = mean(local, world)
        parameters = combine(lambda p, g: p - LEARNING_RATE * g, parameters, average)
        record.append({"gradients": average, "parameters": parameters})
    return record


def floats(tree):
    """The same with floats, as JSON has them."""
    return combine(float, tree)
