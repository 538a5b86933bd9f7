"""What must be frozen rather than broken."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import enter


@enter(prunable=("hidden",), frozen=("fc",), pinned={"conv2": (0, 1, 2, 9, 10, 11)}, units={"hidden": 5})
class PaddedByConstant(nn.Module):
    """Zero channels on both sides, their number written in the code: their positions stay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.hidden = nn.Conv2d(6, 5, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(5, 12, 3, padding=1)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3))
        return self.fc(F.relu(y + self.conv2(F.relu(self.hidden(x)))).mean((2, 3)))


@enter(prunable=("hidden",), frozen=("fc",), pinned={"conv2": (0, 1, 2, 9, 10, 11)}, units={"hidden": 5})
class PaddedByLambda(nn.Module):
    """The same number, kept in a closure: the usual option-A shortcut."""

    def __init__(self) -> None:
        super().__init__()
        planes = 12
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.hidden = nn.Conv2d(6, 5, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(5, 12, 3, padding=1)
        self.shortcut = lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, planes // 4, planes // 4), "constant", 0)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.shortcut(x)
        return self.fc(F.relu(y + self.conv2(F.relu(self.hidden(x)))).mean((2, 3)))


@enter(prunable=("first",), frozen=("conv", "fc"), units={"first": 5})
class HardCodedView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.relu(self.first(x)))
        return self.fc(F.relu(x).view(-1, 8, 36).mean(-1))


@enter(prunable=("first",), frozen=("conv", "fc"), units={"first": 5})
class HardCodedFlatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.fc = nn.Linear(8 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(F.relu(self.first(x)))).view(-1, 288))


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class HardCodedUnflatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.relu(self.first(x))).unflatten(1, (2, 4))
        return self.head(x.transpose(1, 2).flatten(1, 2))


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class ConstantGather(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(F.relu(self.first(x))))
        return self.head(x[:, [6, 0, 3]])


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class ConstantIndexSelect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.register_buffer("order", torch.tensor([7, 6, 5, 4, 0, 1, 2, 3]))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(F.relu(self.first(x))))
        return self.head(torch.index_select(x, 1, self.order))


@torch.library.custom_op("lcprune_tests::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    """An operator that nobody has described: it reverses the channels and mixes neighbours."""
    return (x.flip(1) + 0.5 * x.roll(1, 1)).clone()


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@enter(prunable=("first", "after"), frozen=("conv", "head"), units={"after": 6})
class UnknownOperator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.after = nn.Conv2d(8, 6, 1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = twist(self.conv(F.relu(self.first(x))))
        return self.head(F.relu(self.after(x)))


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class UnregisteredConstant(nn.Module):
    """A tensor of channel size that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.scale = 0.5 + torch.rand(8, 1, 1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(F.relu(self.first(x))) * self.scale)


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class ConstantMadeInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.relu(self.first(x)))
        return self.head(x + torch.arange(8, dtype=x.dtype).view(1, 8, 1, 1))


@enter(prunable=("first",), frozen=("conv", "head"), units={"first": 5})
class AddedToItsRoll(nn.Module):
    """x + roll(x) ties every channel to its neighbour: nothing can go alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.relu(self.first(x)))
        return self.head(F.relu(x + torch.roll(x, 1, 1)))


@enter(prunable=("first",), frozen=("head",), pinned={"conv": (0, 1, 2)}, units={"first": 5})
class FixedSlice(nn.Module):
    """x[:, :3] with the number in the code: what is sliced stays, what nobody reads may go."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)
        self.head = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(F.relu(self.first(x))))
        return self.head(x[:, :3])


@enter(prunable=("first",), frozen=("conv",), units={"first": 5})
class ChannelsMultiplied(nn.Module):
    """Products between channels reach the output: its shape shows their number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.conv = nn.Conv2d(5, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.relu(self.first(x))).flatten(2)
        return x @ x.transpose(1, 2)
