"""Random small networks: a recipe is a list of (step, number) pairs; every recipe builds and runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import seeded

INPUT = (2, 3, 6, 6)
Step = tuple[nn.Module, int]


class Function(nn.Module):
    """A step from modules and a function of them and the tensor."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)


def _shuffle(x: Tensor, parts: int) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, parts, c // parts, h, w).transpose(1, 2).reshape(b, c, h, w)


def _split_cat(x: Tensor, conv: nn.Module) -> Tensor:
    left, right = x.chunk(2, 1)
    return torch.cat([F.relu(conv(left)), right], 1)


def _gate(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, 1)
    return value * torch.sigmoid(gate)


def _squeeze_excite(x: Tensor, squeeze: nn.Module, excite: nn.Module) -> Tensor:
    return x * torch.sigmoid(excite(F.relu(squeeze(x.mean((2, 3), keepdim=True)))))


def _unshuffle(x: Tensor) -> Tensor:
    return F.interpolate(F.pixel_unshuffle(x, 2), scale_factor=2.0)


def _stack(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    return torch.stack([a(x), b(x)], 2).flatten(1, 2)


def _layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def build_step(name: str, c: int, n: int) -> Step:
    """Build one step for `c` channels; `n` chooses sizes. A step that does not fit becomes an activation."""
    out, half = (4, 6, 8)[n % 3], c // 2
    even = c % 2 == 0 and c > 2
    small = c <= 8
    parts = 2 if c % 2 == 0 else (3 if c % 3 == 0 else 1)
    table: dict[str, Callable[[], Step]] = {
        "conv": lambda: (nn.Conv2d(c, out, 3, padding=1), out),
        "transposed": lambda: (nn.ConvTranspose2d(c, out, 3, padding=1), out),
        "pointwise": lambda: (nn.Conv2d(c, out, 1, bias=False), out),
        "batch_norm": lambda: (nn.BatchNorm2d(c), c),
        "instance_norm": lambda: (nn.InstanceNorm2d(c, affine=n % 2 == 0), c),
        "prelu": lambda: (nn.PReLU(c), c),
        "relu": lambda: (nn.ReLU(), c),
        "sigmoid": lambda: (nn.Sigmoid(), c),
        "pool": lambda: (nn.MaxPool2d(3, 1, 1), c),
        "residual": lambda: (Function(lambda x, f: F.relu(x + f(x)), nn.Conv2d(c, c, 3, padding=1)), c),
        "bottleneck": lambda: (
            Function(lambda x, f, g: x + g(F.relu(f(x))), nn.Conv2d(c, out, 1), nn.Conv2d(out, c, 1)),
            c,
        ),
        "projection": lambda: (
            Function(lambda x, f, g: f(x) + F.relu(g(x)), nn.Conv2d(c, out, 1), nn.Conv2d(c, out, 3, padding=1)),
            out,
        ),
        "dense": lambda: (Function(lambda x, f: torch.cat([x, f(x)], 1), nn.Conv2d(c, 4, 1)), c + 4),
        "twice": lambda: (Function(lambda x, f: F.relu(f(F.relu(f(x)))), nn.Conv2d(c, c, 1)), c),
        "grouped": lambda: (nn.Conv2d(c, parts * 3, 3, padding=1, groups=parts), parts * 3),
        "depthwise": lambda: (nn.Conv2d(c, c, 3, padding=1, groups=c), c),
        "squeeze_excite": lambda: (Function(_squeeze_excite, nn.Conv2d(c, 3, 1), nn.Conv2d(3, c, 1)), c),
        "spatial_gate": lambda: (Function(lambda x, f: x * torch.sigmoid(f(x)), nn.Conv2d(c, 1, 1)), c),
        "shuffle": lambda: (Function(lambda x: _shuffle(x, parts)), c),
        "flip": lambda: (Function(lambda x: x.flip(1)), c),
        "roll": lambda: (Function(lambda x: torch.roll(x, 1 + n % 3, 1)), c),
    }
    if small:
        table["cat_self"] = lambda: (Function(lambda x: torch.cat([x, x], 1)), 2 * c)
        table["repeat_interleave"] = lambda: (Function(lambda x: x.repeat_interleave(2, 1)), 2 * c)
        table["multiplier"] = lambda: (nn.Conv2d(c, 2 * c, 3, padding=1, groups=c), 2 * c)
        table["stack"] = lambda: (Function(_stack, nn.Conv2d(c, 4, 1), nn.Conv2d(c, 4, 1)), 8)
    if c <= 4:
        table["unshuffle"] = lambda: (Function(_unshuffle), 4 * c)
    if c % 4 == 0:
        table["pixel_shuffle"] = lambda: (Function(lambda x: F.avg_pool2d(F.pixel_shuffle(x, 2), 2)), c // 4)
        table["group_norm"] = lambda: (nn.GroupNorm(2, c), c)
    if even:
        table["gate"] = lambda: (Function(_gate), half)
        table["split_cat"] = lambda: (Function(_split_cat, nn.Conv2d(half, half, 1)), c)
    table["layer_norm"] = lambda: (Function(_layer_norm, nn.LayerNorm(c)), c)
    return table.get(name, table["relu"])()


STEPS = (
    "conv",
    "transposed",
    "pointwise",
    "batch_norm",
    "instance_norm",
    "prelu",
    "relu",
    "sigmoid",
    "pool",
    "residual",
    "bottleneck",
    "projection",
    "dense",
    "twice",
    "grouped",
    "depthwise",
    "squeeze_excite",
    "spatial_gate",
    "shuffle",
    "flip",
    "roll",
    "cat_self",
    "repeat_interleave",
    "multiplier",
    "stack",
    "unshuffle",
    "pixel_shuffle",
    "group_norm",
    "gate",
    "split_cat",
    "layer_norm",
)


class RandomNetwork(nn.Module):
    """Stem, the steps of the recipe, and one of three heads."""

    def __init__(self, recipe: list[tuple[str, int]], head: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        steps, c = [], 8
        for name, number in recipe:
            step, c = build_step(name, c, number)
            steps.append(step)
        self.steps = nn.Sequential(*steps)
        self.kind = head
        self.head = nn.Linear(c if head == 0 else c * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.steps(F.relu(self.stem(x)))
        if self.kind == 0:
            return self.head(F.relu(x).mean((2, 3)))
        if self.kind == 1:
            return self.head(torch.tanh(x).flatten(1))
        return self.head(torch.tanh(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1))


def build(recipe: list[tuple[str, int]], head: int) -> nn.Module:
    """A random network with non-trivial weights that depend on the recipe only."""
    return seeded(lambda: RandomNetwork(recipe, head), repr((recipe, head)))
