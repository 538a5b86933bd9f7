"""Networks and data that a metric meets less often: shared layers, groups, tokens, odd losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import lcprune
from lcprune import models
from lcprune.errors import MetricError

DATA_METRICS = ("fisher", "taylor", "taylor_activation")


def named(graph: Any, metric: Any, **options: Any) -> dict[str, np.ndarray]:
    return dict(zip((g.name for g in graph.groups), lcprune.metrics.score(graph, metric, **options), strict=True))


@pytest.mark.parametrize("small", ["bare"], indirect=True)
def test_bn_scale_names_the_layers_without_a_norm(small: SimpleNamespace) -> None:
    with pytest.raises(MetricError, match=r"cannot rank 'up', 'fc1': no normalisation.*ignore=\['up', 'fc1'\]"):
        lcprune.metrics.score(small.graph, "bn_scale")


@pytest.mark.parametrize("metric", DATA_METRICS)
def test_data_that_is_not_pairs_is_refused(small: SimpleNamespace, metric: str) -> None:
    with pytest.raises(MetricError, match=r"data gave a Tensor: batches of \(input, target\) are wanted"):
        lcprune.metrics.score(small.graph, metric, data=[small.images])


@pytest.mark.parametrize("metric", ["fisher", "taylor", "taylor_activation"])
def test_a_loss_without_gradient_or_per_image_is_refused(small: SimpleNamespace, metric: str) -> None:
    def each(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target, reduction="none")

    def cut(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.detach(), target)

    with pytest.raises(MetricError, match=r"loss_fn gave \(4,\): one number"):
        lcprune.metrics.score(small.graph, metric, data=small.batches, loss_fn=each)
    with pytest.raises(MetricError, match="the loss has no gradient"):
        lcprune.metrics.score(small.graph, metric, data=small.batches, loss_fn=cut)
    assert not any(module._forward_hooks for module in small.model.modules())


@pytest.mark.parametrize("metric", DATA_METRICS)
def test_an_error_in_the_network_leaves_no_trace(small: SimpleNamespace, metric: str) -> None:
    small.model.train()
    with pytest.raises(RuntimeError):
        lcprune.metrics.score(small.graph, metric, data=[(small.images[:, :2], small.targets)])
    assert all(module.training and not module._forward_hooks for module in small.model.modules())


class Twice(nn.Module):
    """One convolution that runs twice on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = torch.relu(self.again(x))
        return self.head(x.mean((2, 3)))


def test_a_layer_that_runs_twice_has_one_feature_map_in_two_parts() -> None:
    model = Twice().double().eval()
    images, targets = torch.randn(6, 3, 2, 2).double(), torch.randint(3, (6,))
    graph = lcprune.trace(model, images[:1])
    (group,) = graph.groups  # the layer reads what it writes, so its input is tied to its output
    found = {m: lcprune.metrics.score(graph, m, data=[(images, targets)])[0] for m in DATA_METRICS}

    slopes, sizes = [], {"first": 4, "again": 8}
    for image, target in zip(images, targets, strict=True):
        gates = {name: torch.ones(4, dtype=torch.double, requires_grad=True) for name in sizes}

        def run(name: str, x: torch.Tensor, gates: Any = gates) -> torch.Tensor:
            return getattr(model, name)(x) * gates[name][None, :, None, None]

        x = run("first", image[None])
        for _ in range(2):
            x = torch.relu(run("again", x))
        functional.cross_entropy(model.head(x.mean((2, 3))), target[None]).backward()
        slopes.append({name: gate.grad.numpy() for name, gate in gates.items()})
    for name in sizes:
        assert any(m.weight == f"{name}.weight" and m.role == "out" for m in group.members)
    each = {name: np.stack([row[name] for row in slopes]) for name in sizes}
    np.testing.assert_allclose(found["fisher"], sum((e**2).mean(0) / 2 for e in each.values()))
    np.testing.assert_allclose(
        found["taylor_activation"], sum(np.abs(each[n] / size).mean(0) for n, size in sizes.items())
    )


def test_tokens_count_as_positions_of_a_linear_layers_feature_map() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 5)).double()
    tokens, targets = torch.randn(4, 7, 5).double(), torch.randn(4, 7, 5).double()
    graph = lcprune.trace(model, tokens[:1])
    (whole,) = lcprune.metrics.score(graph, "fisher", data=[(tokens, targets)], loss_fn=functional.mse_loss)
    parts = [(tokens[:1], targets[:1]), (tokens[1:], targets[1:])]
    (split,) = lcprune.metrics.score(graph, "fisher", data=parts, loss_fn=functional.mse_loss)
    np.testing.assert_allclose(whole, split)


def test_columns_that_channels_of_a_unit_share_count_once() -> None:
    # Channels j and j + 3 feed column j of the two groups, and go together: the cut must stay rectangular.
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1, groups=2), nn.Flatten(), nn.Linear(16, 3))
    graph = lcprune.trace(model, torch.randn(1, 3, 2, 2))
    weight, read = model[0].weight.detach().double(), model[2].weight.detach().double()
    own = weight.square().sum((1, 2, 3))
    expected = own[:3] + own[3:] + read.square().sum((0, 2, 3))
    np.testing.assert_allclose(named(graph, "l2_next")["0"], expected)


class Functional(nn.Module):
    """Filters that no convolution module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 1, 1))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.conv2d(x, self.kernel).mean((2, 3)))


def test_filters_outside_of_layers_have_weight_metrics_and_say_so_for_others() -> None:
    model = Functional()
    graph = lcprune.trace(model, torch.randn(1, 3, 2, 2))
    data = [(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 0, 1]))]
    assert lcprune.metrics.score(graph, "taylor", data=data)[0].shape == (4,)
    with pytest.raises(MetricError, match=r"'kernel' of a Functional, whose feature maps cannot be caught"):
        lcprune.metrics.score(graph, "fisher", data=data)


@pytest.mark.parametrize("name", ["resnet20", "mobilenetv2"])
def test_the_papers_networks_have_scores_for_every_metric(name: str) -> None:
    model = models.build(name)
    images = torch.randn(4, 3, 32, 32)
    graph = lcprune.trace(model, images[:1])
    data = [(images, torch.tensor([0, 1, 2, 3]))]
    for metric in lcprune.metrics.names():
        found = lcprune.metrics.score(graph, metric, data=data)
        assert [array.shape for array in found] == [(group.size,) for group in graph.groups]


@pytest.mark.parametrize("metric", DATA_METRICS)
def test_inputs_may_be_a_tensor_a_tuple_or_a_dict(small: SimpleNamespace, metric: str) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small.model

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.net(left + right)

    images, targets = small.images, small.targets
    graph = lcprune.trace(Sum(), (images[:1], images[:1]))
    expected = lcprune.metrics.score(small.graph, metric, data=[(images, targets)])
    for inputs in ((images, images * 0), {"right": images * 0, "left": images}):
        found = lcprune.metrics.score(graph, metric, data=[(inputs, targets)])
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
