"""What `python -m tests.fuzz` found: each was cut wrongly, counted wrongly, or taken for wrong."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(frozen=("conv", "head"))
class UnevenHalves(nn.Module):
    """Three channels and two: any other numbers would be split elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.left = nn.Conv2d(3, 4, 1)
        self.right = nn.Conv2d(2, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).chunk(2, 1)
        return self.head(F.relu(self.left(a) + self.right(b)).mean((2, 3)))


@enter(prunable=("last",), frozen=("conv", "head"))
class PartsOfTwo(nn.Module):
    """With half of the channels there are fewer parts, and `zip` leaves out a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.first, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.conv(x).split(2, 1)
        out = [parts[0]]
        for part, layer in zip(parts[1:], (self.first, self.last)):  # noqa: B905
            out.append(layer(part + out[-1] if part.shape == out[-1].shape else part))
        return self.head(torch.cat(out, 1).mean((2, 3)))


@enter(prunable=("conv", "bank", "choice"), frozen=("head",), units={"conv": 4}, mixing=("choice",))
class MixtureOfFilters(nn.Module):
    """The bank's rows and columns lie along one axis of the product that mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.choice = nn.Linear(4, 3)
        self.bank = nn.Parameter(0.3 * torch.randn(3, 6, 4, 1, 1))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        weight = self.choice(x.mean((2, 3))).softmax(1) @ self.bank.flatten(1)
        weight = weight.view(-1, x.shape[1], 1, 1)
        out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight, groups=x.shape[0])
        return self.head(F.relu(out.view(x.shape[0], -1, *x.shape[2:])).mean((2, 3)))


@enter((2, 3, 5, 5), prunable=("qkv",), frozen=("head",), units={"qkv": 3}, mixing=("qkv",))
class SoftmaxOverChannelsOfHeads(nn.Module):
    """Efficient attention: channels share a sum in each head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 18)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)).unflatten(2, (3, 2, -1)).transpose(1, 3).unbind(2)
        out = q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)
        return self.head(out.transpose(1, 2).flatten(2))


@enter(prunable=("query",), frozen=("conv", "head"), units={"query": 5})
class WrittenIntoFreshMemory(nn.Module):
    """Zeros that the code makes and fills are not zeros any more, nor a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.query = nn.Conv2d(3, 4, 3), nn.Conv1d(4, 5, 1)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.zeros(x.shape[0], 4, 36, dtype=x.dtype)
        y[:, :2] = self.conv(x).flatten(2)[:, 2:]
        return self.head(F.relu(self.query(y)).mean(2)), y @ y.transpose(1, 2)


@enter(frozen=("conv", "head"))
class FirstFourThenShuffled(nn.Module):
    """Where four channels are left, `[:, :4]` is no operator, whichever four they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x[:, :4] = x[:, :4].tanh()
        return self.head(x.view(x.shape[0], 2, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2).mean((2, 3)))


@enter(frozen=("conv", "head"))
class FirstFourThenSummed(nn.Module):
    """Two units: the trial cuts must leave out each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x[:, :4] = x[:, :4].tanh()
        return self.head(x.unflatten(1, (-1, 4)).sum((2, 3, 4)))


@enter((2, 5, 3), prunable=("values", "wide"), frozen=("head",), units={"values": 6, "wide": 4}, mixing=("values",))
class ValuesAsAnImage(nn.Module):
    """Channels along the space of convolutions that lose channels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(3, 6)
        self.wide, self.narrow = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)
        self.head = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.narrow(F.relu6(self.wide(self.values(x).unsqueeze(1)))).mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class OneImageFilled(nn.Module):
    """A channel that goes is the same in all images, though one of them no longer shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x, weight = self.conv(x), self.head.weight
        x[0] = 0.1
        x = x.mean((2, 3))
        return x @ weight.t(), torch.tensordot(x, weight, dims=([1], [1]))


@enter(prunable=("wide",), frozen=("head",), units={"wide": 4})
class SoftmaxOverGrids(nn.Module):
    """Half of the channels, taken along another side of the grids, would fill half as many grids."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(3, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(x.mean((2, 3))).unflatten(1, (-1, 2, 2)).flatten(2).softmax(2).flatten(1))


@enter(prunable=("conv", "mix"), frozen=("head",), units={"conv": 4}, mixing=("mix",))
class MixedWithLearnedTokens(nn.Module):
    """A channel of the map is one of the learned tokens too, wherever a layer mixes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.tokens = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(1, 4, 2))
        self.mix, self.head = nn.Linear(38, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.tokens.expand(x.shape[0], -1, -1), self.conv(x).flatten(2)], 2)
        return self.head(self.mix(x).relu().mean(2))


@enter(prunable=("first", "second", "mix"), frozen=("head",), units={"first": 3, "second": 3})
class ReshapedLikeAnother(nn.Module):
    """Two layers of three channels must keep the same ones, though every cut of three channels to two looks alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
        self.mix, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        mixed = self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2)
        return self.head(mixed.reshape(x.shape).mean((2, 3)))


@enter(prunable=("conv", "reader"), frozen=("head",), units={"conv": 16, "reader": 8})
class CountedByNumPy(nn.Module):
    """A number that follows a cut meets one of NumPy's, which has methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.reader, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3), nn.Linear(8, 3)
        self.rows = 16

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        twice = int((self.rows * np.sqrt(4.0)).round())
        x = x.reshape(len(x), twice // 2, -1).reshape(len(x), self.rows, *x.shape[2:])
        return self.head(self.reader(x).mean((2, 3)))


@enter(frozen=("first", "second", "head"))
class HalvesOfTwo(nn.Module):
    """Five channels beside four are halved between them only while about as many of each are left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3), nn.Conv2d(3, 4, 3)
        self.left, self.right = nn.Conv2d(5, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.cat([self.first(x), self.second(x)], 1).tensor_split(2, dim=1)
        return self.head(F.relu(self.left(a) + self.right(b)).mean((2, 3)))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 4})
class PooledAndBack(nn.Module):
    """A channel that goes is zero wherever its largest values are not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_unpool2d(*F.max_pool2d(self.conv(x), 2, return_indices=True), 2)
        return self.head(x.flatten(1))
