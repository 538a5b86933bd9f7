"""Attention and recurrence: layers that torch runs whole, so removed rows are set to zero to see what is left."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.entry import enter


class Tokens(nn.Module):
    """Pixels of a convolution as tokens, read by a linear layer in the end."""

    by_zeros = True  # the oracle cannot look inside

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.fc = nn.Linear(width, 4)

    def tokens(self, x: Tensor) -> Tensor:
        return torch.relu(self.stem(x)).flatten(2).transpose(1, 2)


@enter(prunable=("stem", "attention.in_proj_weight"), frozen=("fc",), units={"stem": 4})
class ResidualAttention(Tokens):
    """The heads are as wide as the tokens: both shrink by one channel per head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        return self.fc((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


@enter(prunable=("stem", "attention.out_proj"), frozen=("fc",), units={"stem": 4, "attention.out_proj": 8})
class AttentionPool(Tokens):
    """The mean asks; what comes out is not added to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        return self.fc(self.attention(x.mean(1, keepdim=True), x, x)[0][:, 0])


@enter(prunable=("stem", "other", "attention.q_proj_weight"), frozen=("fc",), units={"stem": 4, "other": 6})
class CrossAttention(Tokens):
    """Keys and values of another width are cut by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(3, 6, 3)
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6)

    def forward(self, x: Tensor) -> Tensor:
        other = self.other(x).flatten(2).permute(2, 0, 1)
        x = self.tokens(x).transpose(0, 1)
        return self.fc((x + self.attention(x, other, other)[0]).mean(0))


@enter(
    prunable=("stem", "encoder.self_attn.in_proj_weight", "encoder.linear1"),
    frozen=("fc",),
    units={"stem": 4, "encoder.linear1": 16},
    mixing=("stem",),
)
class EncoderLayer(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.tokens(x)).mean(1))


class SelfAttention(nn.Module):
    """As in timm: the number of channels is read from the tokens and used for the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


@enter(prunable=("stem", "blocks.0.qkv", "blocks.1.qkv"), frozen=("fc",), units={"stem": 4})
class WidthOfTheTokens(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([SelfAttention(), SelfAttention()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.mean(1))


@enter(prunable=("stem", "qkv"), frozen=("fc",), units={"stem": 8, "qkv": 4})
class WidthOfTheHeads(Tokens):
    """The heads' width is left to `reshape`, so heads and tokens are cut apart."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        b, _, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, -1, h * w).unbind(1)
        mixed = v @ (k.transpose(-1, -2) @ q).softmax(-2)
        return self.fc((x + self.proj(mixed.reshape(b, -1, h, w))).mean((2, 3)))


@enter(
    prunable=("stem", "memory.weight_hh_l0", "memory.weight_hh_l1"),
    frozen=("fc",),
    units={"stem": 8, "memory.weight_hh_l0": 6},
)
class LongShortTermMemory(Tokens):
    """Two layers: torch keeps one size for both, and hands back their states in one tensor."""

    def __init__(self) -> None:
        super().__init__(6)
        self.memory = nn.LSTM(8, 6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.memory(self.tokens(x)[:, :4])[0][:, -1])


@enter(prunable=("stem", "memory.weight_hh_l0_reverse"), frozen=("fc",), units={"memory.weight_hh_l0": 6})
class GatedBothWays(Tokens):
    def __init__(self) -> None:
        super().__init__(12)
        self.memory = nn.GRU(8, 6, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.memory(self.tokens(x)[:, :4])[0][:, -1])


@enter(prunable=("stem", "memory.weight_hr_l0"), frozen=("fc", "memory.weight_hh_l0"), units={"stem": 8})
class ProjectedMemory(Tokens):
    """torch tells a projection by its size: the states may not shrink to it."""

    def __init__(self) -> None:
        super().__init__(5)
        self.memory = nn.LSTM(8, 6, batch_first=True, proj_size=5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.memory(self.tokens(x)[:, :4])[0][:, -1])


@enter(prunable=("stem", "cell.weight_hh", "gates.weight_hh"), frozen=("fc",), units={"stem": 8, "cell.weight_hh": 6})
class RecurrentCells(Tokens):
    def __init__(self) -> None:
        super().__init__(6)
        self.cell, self.gates = nn.LSTMCell(8, 6), nn.GRUCell(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        state, memory = None, None
        for token in self.tokens(x).unbind(1)[:3]:
            state = self.cell(token, state)
            memory = self.gates(state[0], memory)
        return self.fc(memory)
