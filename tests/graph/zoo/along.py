"""Operators along space, which treat every channel by itself: sorting, running sums, Fourier transforms, folding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


class Between(nn.Module):
    """Two convolutions; networks below differ in what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 3)


@enter(prunable=("conv", "middle"), frozen=("head",), units={"conv": 8})
class Unpooled(Between):
    """The places of the largest values are those of another layer's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, places = F.max_pool2d(self.conv(x), 2, return_indices=True)
        return self.head(F.max_unpool2d(self.middle(x), places, 2))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class OrderedInSpace(Between):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(2)
        x = torch.cat([x.cumsum(-1), x.sort(2, descending=True)[0], x.cummax(2)[0]], 2)
        return self.head(x + x.kthvalue(3, 2)[0].unsqueeze(2) + x.logcumsumexp(2))


@enter(prunable=("conv",), frozen=("head",), units={"conv": 8})
class BestPlaces(Between):
    """Places found per channel, and places that all channels share."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        shared = x.mean(1, keepdim=True).flatten(2).topk(5, -1)[1]
        x = self.conv(x).flatten(2)
        values, places = x.topk(5, -1)
        best = torch.zeros_like(x).scatter(2, places, values)
        return self.head(torch.cat([best, x.gather(2, shared.expand(-1, x.shape[1], -1)), x.gather(2, places)], 2))


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class OrderedByChannel(nn.Module):
    """Along the channels the order itself is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(F.relu(self.first(x))).cumsum(1).topk(3, 1)[0])


@enter(prunable=("conv", "spectrum"), frozen=("head",), units={"conv": 8})
class GlobalFilter(Between):
    """A learned complex filter in the frequencies of every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8, 8, 5, 2))
        self.spectrum = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fft.rfft2(self.conv(x), norm="ortho") * torch.view_as_complex(self.filter)
        b, _, h, w = x.shape
        y = self.spectrum(torch.view_as_real(x).permute(0, 1, 4, 2, 3).reshape(b, -1, h, w))
        y = y.view(b, -1, 2, h, w)
        y = torch.complex(y[:, :, 0], y[:, :, 1])
        return self.head(
            torch.fft.irfft2(x + y, s=(8, 8), norm="ortho") + torch.fft.fft(x, dim=2).abs().mean((2, 3), keepdim=True)
        )


@enter(prunable=("conv", "patches"), frozen=("head",), units={"conv": 8, "patches": 8})
class Folded(Between):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv1d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.unfold(F.relu(self.conv(x)), 2, stride=2)
        return self.head(F.fold(self.patches(x), (8, 8), 2, stride=2))
