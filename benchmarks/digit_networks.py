"""Four small networks for handwritten digits, one per way in which channels depend on one another.

plain       every convolution is a group of its own
residual    the convolutions of a stage are tied by additions
separable   depthwise convolutions ride on the channels of the pointwise one before them
dense       every layer reads the concatenation of all before it; batch norm comes before convolution
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune import data
from lcprune.files import write_json


def _conv(inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class _Head(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


def plain(width: int = 16, classes: int = 10) -> nn.Module:
    """Six convolutions, pooled twice."""
    return nn.Sequential(
        _conv(1, width),
        _conv(width, width),
        nn.MaxPool2d(2),
        _conv(width, 2 * width),
        _conv(2 * width, 2 * width),
        nn.MaxPool2d(2),
        _conv(2 * width, 4 * width),
        _conv(4 * width, 4 * width),
        _Head(4 * width, classes),
    )


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


def residual(width: int = 16, classes: int = 10) -> nn.Module:
    """Three stages of two residual blocks."""
    blocks: list[nn.Module] = [_conv(1, width)]
    inputs = width
    for stage in range(3):
        for block in range(2):
            outputs = width * 2**stage
            blocks.append(_Residual(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*blocks, _Head(inputs, classes))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = _conv(inputs, inner, 1)
        self.depthwise = _conv(inner, inner, 3, groups=inner)
        self.project = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.residual = inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.residual else out


def separable(width: int = 16, classes: int = 10) -> nn.Module:
    """Inverted residual blocks with depthwise convolutions."""
    return nn.Sequential(
        _conv(1, width),
        _Inverted(width, width, 3),
        nn.MaxPool2d(2),
        _Inverted(width, 2 * width, 3),
        _Inverted(2 * width, 2 * width, 3),
        nn.MaxPool2d(2),
        _Inverted(2 * width, 3 * width, 3),
        _Inverted(3 * width, 3 * width, 3),
        _conv(3 * width, 6 * width, 1),
        _Head(6 * width, classes),
    )


class _Dense(nn.Module):
    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + index * growth),
                nn.ReLU(),
                nn.Conv2d(inputs + index * growth, growth, 3, padding=1, bias=False),
            )
            for index in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def dense(width: int = 16, classes: int = 10) -> nn.Module:
    """Two densely connected blocks with a halving transition between them."""
    first = width + 4 * width
    second = first // 2 + 4 * width
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        _Dense(width, width, 4),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        nn.Conv2d(first, first // 2, 1, bias=False),
        nn.AvgPool2d(2),
        _Dense(first // 2, width, 4),
        nn.BatchNorm2d(second),
        nn.ReLU(),
        _Head(second, classes),
    )


NETWORKS = {"plain": plain, "residual": residual, "separable": separable, "dense": dense}


def digits(device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, held-out images and labels; every fourth image is held out."""
    pixels, classes = data.digits()
    images = torch.tensor(pixels, dtype=torch.float32, device=device)[:, None] / 8 - 1
    labels = torch.tensor(classes, device=device)
    held_out = torch.arange(len(labels), device=device) % 4 == 3
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def train(
    model: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int, learning_rate: float = 0.1
) -> nn.Module:
    """SGD with Nesterov momentum and a cosine learning rate; random shifts by one pixel."""
    generator = torch.Generator().manual_seed(seed)
    batch = 64
    steps = epochs * -(-len(labels) // batch)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(labels), generator=generator).split(batch):
            rows, columns = torch.randint(-1, 2, (2,), generator=generator).tolist()
            moved = torch.roll(images[index], (rows, columns), (2, 3))
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(moved), labels[index]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def batches(images: Tensor, labels: Tensor, size: int = 128) -> list[tuple[Tensor, Tensor]]:
    """(input, target) batches, as `lcprune.prune` takes them."""
    return list(zip(images.split(size), labels.split(size), strict=True))


def run(
    measure: Callable[[Any], list[dict[str, Any]]],
    cells: Iterable[Any],
    out: Path,
    about: dict[str, Any],
    show: Callable[[], None],
    description: str | None,
) -> None:
    """Measure all cells, two at a time, and write their rows; or only `--show` what was written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    if not parser.parse_args().show:
        with ProcessPoolExecutor(2) as pool:
            rows = [row for part in pool.map(measure, cells) for row in part]
        write_json(out, {**about, "rows": rows}, indent=1)
    show()
