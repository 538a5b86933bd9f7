"""Code that people write between two layers: cut where it can be, frozen where it cannot, never wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcprune


class Between(nn.Module):
    """Two convolutions with `code` in between."""

    def __init__(self, code: Callable[[Between, Tensor], Tensor]) -> None:
        super().__init__()
        self.code = code
        self.a, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.memory = nn.LSTM(8, 8, batch_first=True)
        self.first = 3
        nn.init.normal_(self.norm.bias)
        self.norm.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.code(self, self.norm(self.a(x)).relu()).mean((2, 3)))


def assigned_slice(net: Between, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :4] = net.b(x)[:, :4]
    return x


def filled_by_hand(net: Between, x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], 8, *x.shape[2:], dtype=x.dtype)
    out[:, :4] = net.b(x)[:, 4:]
    out[:, 4:] = x[:, :4]
    return out


def filled_in_steps(net: Between, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, ::2], out[:, 1::2] = x[:, ::2], net.b(x)[:, 1::2]
    return out


def attention(net: Between, x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    return net.attention(tokens, tokens, tokens)[0].transpose(1, 2).reshape_as(x)


def memory(net: Between, x: Tensor) -> Tensor:
    first_row = x[:, :, 0].transpose(1, 2)
    return net.memory(first_row)[0].transpose(1, 2)[:, :, None].expand_as(x)


def maxout(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    y = y.view(y.shape[0], -1, 2, *y.shape[2:]).max(2)[0]
    return torch.cat([y, y], 1)


def dynamic_filters(net: Between, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    filters = net.b(x).mean((2, 3)).view(-1, 1, 1, 1)
    return F.conv2d(x.reshape(1, b * c, h, w), filters, groups=b * c).view(b, c, h, w)


def gated_halves(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    first, second = y[:, : y.shape[1] // 2], y[:, y.shape[1] // 2 :]
    return torch.cat([first * second, second], 1)


def every_second(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([y[:, ::2], y[:, 1::2]], 1)


def one_by_one(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.stack([y[:, channel] for channel in range(y.shape[1])], 1)


def one_by_one_to_eight(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.stack([y[:, channel] for channel in range(8)], 1)


def channel_graph(net: Between, x: Tensor) -> Tensor:
    pooled = net.b(x).mean((2, 3))
    weights = (pooled[:, :, None] * pooled[:, None, :]).softmax(-1)
    return torch.einsum("bcd,bdhw->bchw", weights, x)


def gram(net: Between, x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return torch.bmm(torch.bmm(flat, flat.transpose(1, 2)), net.b(x).flatten(2)).view_as(x)


def tied_transpose(net: Between, x: Tensor) -> Tensor:
    return F.conv_transpose2d(F.conv2d(x, net.b.weight, padding=1).relu(), net.b.weight, padding=1)


def indexed_write(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    y[:, [0, 3]] += 1
    return y


def some_activated(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([y[:, :3].tanh(), y[:, 3:]], 1)


def half_activated(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([y[:, :4].tanh(), y[:, 4:]], 1)


def some_activated_by_attribute(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([y[:, : net.first].tanh(), y[:, net.first :]], 1)


def some_activated_in_place(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    y[:, :6].tanh_()
    return y


def all_but_one_activated_in_place(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    y[:, :7].tanh_()
    return y


def means_of_parts(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return x * y[:, :3].mean(1, keepdim=True) * y[:, 3:].mean(1, keepdim=True)


def every_second_activated(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([y[:, ::2].tanh(), y[:, 1::2]], 1)


def each_by_its_number(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.stack([y[:, channel] * (channel + 1) for channel in range(y.shape[1])], 1)


def each_by_its_turn(net: Between, x: Tensor) -> Tensor:
    channels = net.b(x).unbind(1)
    return torch.stack([y.relu() if turn % 2 else y.tanh() for turn, y in enumerate(channels)], 1)


def each_alike(net: Between, x: Tensor) -> Tensor:
    return torch.stack([y * 0.5 for y in net.b(x).unbind(1)], 1)


def cropped(net: Between, x: Tensor) -> Tensor:
    y = net.b(x)
    return torch.cat([F.pad(y, (0, 0, 0, 0, -3, 0)).tanh(), y[:, :3]], 1)


def masked_slice(net: Between, x: Tensor) -> Tensor:
    mask = torch.ones(1, x.shape[1], 1, 1, dtype=x.dtype)
    mask[:, :3] = 0
    return net.b(x) * mask


def masked_by_index(net: Between, x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[1], dtype=x.dtype)
    mask[[0, 3]] = 0
    return net.b(x) * mask.view(-1, 1, 1)


def masked_by_parts(net: Between, x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    mask = torch.cat([torch.ones(half, dtype=x.dtype), torch.zeros(x.shape[1] - half, dtype=x.dtype)])
    return net.b(x) * mask.view(-1, 1, 1)


def refilled(net: Between, x: Tensor) -> Tensor:
    scale = torch.ones(x.shape[1], dtype=x.dtype)
    scale.fill_(3)
    return x * scale.view(-1, 1, 1)


# What runs, and which of the two convolutions must be prunable (in whole or in part).
CODE: dict[str, tuple[Callable[[Between, Tensor], Tensor], str]] = {
    "assigned slice": (assigned_slice, ""),
    "filled by hand": (filled_by_hand, ""),
    "filled in steps": (filled_in_steps, ""),
    "einsum": (lambda net, x: torch.einsum("bchw,dc->bdhw", x, net.mix), "a"),
    "attention": (attention, ""),
    "memory": (memory, ""),
    "maxout": (maxout, "ab"),
    "cumsum": (lambda net, x: net.b(x).cumsum(1), "a"),
    "sort": (lambda net, x: net.b(x).sort(1)[0], "a"),
    "stack and sum": (lambda net, x: torch.stack([x, net.b(x), x * 2]).sum(0), "ab"),
    "dynamic filters": (dynamic_filters, "ab"),
    "fft": (lambda net, x: torch.fft.ifft2(torch.fft.fft2(net.b(x))).real, "a"),
    "where": (lambda net, x: torch.where(net.b(x) > 0, x, net.b(x)), "ab"),
    "gated halves": (gated_halves, "ab"),
    "every second": (every_second, "a"),
    "one by one": (one_by_one, "ab"),
    "one by one to eight": (one_by_one_to_eight, "a"),
    "channel graph": (channel_graph, "ab"),
    "normalised over channels": (lambda net, x: F.normalize(net.b(x), dim=1), "ab"),
    "local response": (lambda net, x: F.local_response_norm(net.b(x), 3), "a"),
    "spread mean": (lambda net, x: x * net.b(x).mean(1, keepdim=True).expand_as(x), "ab"),
    "mirror": (lambda net, x: torch.cat([net.b(x), net.b(x).flip(1)], 1)[:, 4:12], "a"),
    "gram": (gram, "ab"),
    "tied transpose": (tied_transpose, "ab"),
    "indexed write": (indexed_write, "a"),
    "some activated": (some_activated, "a"),
    "half activated": (half_activated, "a"),
    "some activated, by attribute": (some_activated_by_attribute, "ab"),
    "some activated, in place": (some_activated_in_place, "a"),
    "all but one activated, in place": (all_but_one_activated_in_place, "a"),
    "one channel as a gate": (lambda net, x: x * net.b(x)[:, 1:2].sigmoid(), "a"),
    "means of parts": (means_of_parts, "a"),
    "each by its number": (each_by_its_number, "a"),
    "each by its turn": (each_by_its_turn, "a"),
    "each alike": (each_alike, "ab"),
    "cropped": (cropped, "a"),
    "every second activated": (every_second_activated, "a"),
    "masked slice": (masked_slice, ""),
    "masked by index": (masked_by_index, ""),
    "masked by parts": (masked_by_parts, ""),
    "refilled": (refilled, "a"),
    "counted up": (lambda net, x: net.b(x) * torch.ones(x.shape[1]).cumsum(0).view(-1, 1, 1), ""),
    "looked up": (lambda net, x: x * net.mix.view(-1)[(net.b(x) > 0).long()].mean(1, keepdim=True), "a"),
    "largest place": (lambda net, x: x * net.mix.view(-1)[net.b(x).argmax(1, keepdim=True)], "a"),
    "largest place of two answers": (lambda net, x: x * net.b(x).max(1, keepdim=True)[1], "a"),
    "largest value of two answers": (lambda net, x: x * net.b(x).max(1, keepdim=True)[0], "ab"),
    "triangle of space": (lambda net, x: net.b(x).triu(), "ab"),
    "triangle of a matrix": (lambda net, x: torch.einsum("bchw,dc->bdhw", net.b(x), net.mix.tril()), "a"),
}


@pytest.mark.parametrize("name", CODE)
def test_cut_or_frozen_but_never_wrong(name: str) -> None:
    code, prunable = CODE[name]
    torch.manual_seed(0)
    net, x = Between(code).eval(), torch.randn(2, 3, 6, 6)
    graph = lcprune.trace(net, x)
    producers = {m.weight.split(".")[0] for group in graph.groups for m in group.members if m.role == "out"}
    assert set(prunable) <= producers, graph.frozen
    random = np.random.default_rng(0)
    for _ in range(6):
        kept = [
            np.sort(random.choice(group.size, int(random.integers(1, group.size + 1)), replace=False))
            for group in graph.groups
        ]
        plan = graph.plan(kept)
        verification = lcprune.verify(net, plan, x)
        assert verification.ok, (name, str(verification))
        assert sum(p.numel() for p in plan.apply(net).parameters()) == plan.params


@pytest.mark.parametrize("answer", [lambda y: y.argmax(1), lambda y: y.max(1), lambda y: y.min(1)[1]])
def test_class_numbers_keep_their_classes(answer: Callable[[Tensor], Tensor]) -> None:
    class Classes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return answer(self.head(self.a(x).relu()))

    graph = lcprune.trace(Classes(), torch.randn(2, 3, 6, 6))
    assert [group.name for group in graph.groups] == ["a"]
    assert "place among the channels" in graph.frozen["head"]


@pytest.mark.parametrize("trained", [True, False])  # torch multiplies in another order if no gradient is wanted
@pytest.mark.parametrize(
    "code",
    [
        lambda net, x: torch.einsum("bchw,dc->bdhw", x, net.mix),
        lambda net, x: (net.mix @ x.flatten(2)).unflatten(2, x.shape[2:]),
        lambda net, x: (x.movedim(1, -1) @ net.mix.t()).movedim(-1, 1),
    ],
)
def test_a_bare_matrix_is_a_linear_layer(code: Callable[[Between, Tensor], Tensor], trained: bool) -> None:
    torch.manual_seed(0)
    net, x = Between(code).eval().requires_grad_(trained), torch.randn(2, 3, 6, 6)
    graph = lcprune.trace(net, x)
    assert [group.name for group in graph.groups] == ["a", "mix"], graph.frozen
    plan = graph.plan({"a": [0, 2, 3, 5, 7], "mix": [1, 4, 6]})
    assert plan.macs == 36 * (27 * 5 + 5 * 3) + 3 * 5
    assert lcprune.verify(net, plan, x).ok
