"""Several inputs, several outputs, dictionaries and tuples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter((2, 3, 8, 8), (2, 5), prunable=("image", "facts", "joint"), frozen=("fc",), units={"facts": 4, "joint": 7})
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 6, 3)
        self.facts = nn.Linear(5, 4)
        self.joint = nn.Linear(10, 7)
        self.fc = nn.Linear(7, 3)

    def forward(self, image: Tensor, facts: Tensor) -> Tensor:
        image = F.relu(self.image(image)).mean((2, 3))
        return self.fc(F.relu(self.joint(torch.cat([image, self.facts(facts)], 1))))


@enter(prunable=("stem",), frozen=("classes", "boxes"), units={"stem": 8})
class TupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.classes = nn.Conv2d(8, 5, 1)
        self.boxes = nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = F.relu(self.stem(x))
        classes = self.classes(x)
        return classes, (classes.sigmoid(), self.boxes(x))


@enter(prunable=("stem", "aux1"), frozen=("head", "aux2"), units={"stem": 8, "aux1": 6})
class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.aux1 = nn.Conv2d(8, 6, 3)
        self.aux2 = nn.Conv2d(6, 4, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.stem(x))
        return {"out": self.head(x), "aux": self.aux2(F.relu(self.aux1(x)))}


@enter(prunable=("hidden",), frozen=("stem", "head"), units={"hidden": 5})
class FeatureOutput(nn.Module):
    """The stem's channels are also an output: they stay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.hidden = nn.Conv2d(8, 5, 3)
        self.head = nn.Conv2d(5, 4, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = F.relu(self.stem(x))
        return [features, self.head(F.relu(self.hidden(features)))]


@enter(prunable=("conv",), frozen=("head",), units={"conv": 6})
class UnusedLayers(nn.Module):
    """Layers that are never called do no harm and are carried over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.spare = nn.Conv2d(6, 6, 3)
        self.head = nn.Conv2d(6, 4, 1)
        self.register_buffer("step", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)))


@enter((2, 8, 6, 6), prunable=("hidden",), frozen=("project",), units={"hidden": 5})
class InputShortcut(nn.Module):
    """The input is added to a layer's output: the input's channels are not ours to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(8, 5, 3, padding=1)
        self.project = nn.Conv2d(5, 8, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(x + self.project(F.relu(self.hidden(x)))))


@enter((1, 3, 8, 8), prunable=("conv",), frozen=("fc",), units={"conv": 6})
class BatchOfOne(nn.Module):
    """A batch of one must not be mistaken for an axis that broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.fc = nn.Linear(6 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).reshape(x.shape[0], -1))


@enter((6, 3, 6, 6), prunable=("conv1", "conv2"), frozen=("fc",), units={"conv1": 6, "conv2": 6})
class EqualSizes(nn.Module):
    """Batch, channels, height and width of the same size: an axis must not be recognised by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x)).transpose(1, 3)
        return self.fc(x.mean((1, 2)))
