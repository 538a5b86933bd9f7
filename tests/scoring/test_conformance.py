"""Every metric keeps the same promises, and gives what its definition says."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import lcprune
from lcprune.errors import MetricError

NAMES = (
    "bn_scale",
    "fisher",
    "geometric_median",
    "l1",
    "l2",
    "l2_next",
    "l2_norm",
    "random",
    "taylor",
    "taylor_activation",
)
# bn_scale refuses layers without a norm (see test_edges).
CASES = [(name, kind) for name in NAMES for kind in ("normed", "bare") if (name, kind) != ("bn_scale", "bare")]
every_metric = pytest.mark.parametrize(("name", "small"), CASES, indirect=["small"])


def scores(small: SimpleNamespace, name: str, batches: Any = None) -> list[np.ndarray]:
    needs_data = lcprune.metrics.get(name).needs_data
    return lcprune.metrics.score(small.graph, name, data=(batches or small.batches) if needs_data else None)


def assert_same(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14)


def test_all_are_listed() -> None:
    assert set(NAMES) <= set(lcprune.metrics.names())
    assert lcprune.metrics() == lcprune.metrics.names()
    assert all(lcprune.metrics.get(name).summary for name in NAMES)


@every_metric
def test_one_float64_score_per_unit(small: SimpleNamespace, name: str) -> None:
    found = scores(small, name)
    assert [array.shape for array in found] == [(group.size,) for group in small.graph.groups]
    assert all(array.dtype == np.float64 and (array >= 0).all() and array.std() > 0 for array in found)


@every_metric
def test_the_same_twice(small: SimpleNamespace, name: str) -> None:
    for a, b in zip(scores(small, name), scores(small, name), strict=True):
        np.testing.assert_array_equal(a, b)


@every_metric
def test_order_and_size_of_batches_do_not_matter(small: SimpleNamespace, name: str) -> None:
    expected = scores(small, name)
    assert_same(expected, scores(small, name, small.batches[::-1]))
    uneven = [1, 6, 2, 3]
    assert_same(
        expected,
        scores(small, name, list(zip(small.images.split(uneven), small.targets.split(uneven), strict=True))),
    )


@every_metric
def test_the_network_is_left_as_it_was(small: SimpleNamespace, name: str) -> None:
    model = small.model
    model.train()
    model.bn1.eval()
    model.conv1.weight.requires_grad_(False)
    model.fc1.weight.grad = torch.ones_like(model.fc1.weight)

    def state() -> tuple[Any, ...]:
        digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()
        modes = [module.training for module in model.modules()]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        grads = [(p.requires_grad, None if p.grad is None else p.grad.sum().item()) for p in model.parameters()]
        return digest, modes, hooks, grads, torch.get_rng_state().sum().item(), torch.is_grad_enabled()

    before = state()
    scores(small, name)
    assert state() == before


@every_metric
def test_frozen_networks_and_no_grad_give_the_same(small: SimpleNamespace, name: str) -> None:
    expected = scores(small, name)
    for parameter in small.model.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        assert_same(expected, scores(small, name))


@every_metric
def test_data_is_read_once_so_a_generator_will_do(small: SimpleNamespace, name: str) -> None:
    assert_same(scores(small, name), scores(small, name, (batch for batch in small.batches)))


@every_metric
def test_missing_or_empty_data_is_said(small: SimpleNamespace, name: str) -> None:
    if not lcprune.metrics.get(name).needs_data:
        lcprune.metrics.score(small.graph, name)
        return
    with pytest.raises(MetricError, match=rf"'{name}' needs data: pass data="):
        lcprune.metrics.score(small.graph, name)
    with pytest.raises(MetricError, match="data holds no batches"):
        lcprune.metrics.score(small.graph, name, data=iter(()))


@every_metric
def test_a_score_that_is_not_finite_names_the_layer(small: SimpleNamespace, name: str) -> None:
    if name == "random":
        return
    with torch.no_grad():
        for layer in ("conv1", "bn1", "conv2"):
            getattr(small.model, layer).weight.fill_(float("nan"))
    with pytest.raises(MetricError, match=rf"'{name}' gave '(stem|conv1|expand|up|fc1)' the score nan"):
        scores(small, name)


# What each metric means, the slow way: one filter, one image at a time.


def per_unit(small: SimpleNamespace, definition: Callable[[str, int], float]) -> dict[str, np.ndarray]:
    """Sum a definition (layer, filter) -> number over the filters of each unit."""
    sizes = {group.name: group.size for group in small.graph.groups}
    return {
        group: np.array([sum(definition(layer, unit) for layer in layers) for unit in range(sizes[group])])
        for group, layers in small.filters.items()
    }


def filter_of(small: SimpleNamespace, layer: str, unit: int, tensor: torch.Tensor | None = None) -> torch.Tensor:
    weight = getattr(small.model, layer).weight.detach() if tensor is None else tensor
    return weight[:, unit] if layer == "up" else weight[unit]


def l1(small: SimpleNamespace) -> dict[str, np.ndarray]:
    return per_unit(small, lambda layer, unit: float(filter_of(small, layer, unit).abs().sum()))


def l2(small: SimpleNamespace) -> dict[str, np.ndarray]:
    return per_unit(small, lambda layer, unit: float((filter_of(small, layer, unit) ** 2).sum()))


def l2_norm(small: SimpleNamespace) -> dict[str, np.ndarray]:
    return per_unit(small, lambda layer, unit: float(filter_of(small, layer, unit).flatten().norm()))


def l2_next(small: SimpleNamespace) -> dict[str, np.ndarray]:
    total = l2(small)
    for group, layers in small.readers.items():
        for layer in layers:
            weight = getattr(small.model, layer).weight.detach()
            for unit in range(len(total[group])):
                column = weight[unit] if layer == "up" else weight[:, unit]
                total[group][unit] += float((column**2).sum())
    return total


def geometric_median(small: SimpleNamespace) -> dict[str, np.ndarray]:
    def distances(layer: str, unit: int) -> float:
        own = filter_of(small, layer, unit)
        module = getattr(small.model, layer)
        width = module.out_features if layer == "fc1" else module.out_channels
        return sum(float((own - filter_of(small, layer, other)).flatten().norm()) for other in range(width))

    return per_unit(small, distances)


def bn_scale(small: SimpleNamespace) -> dict[str, np.ndarray]:
    return per_unit(small, lambda layer, unit: abs(getattr(small.model, small.norms[layer]).weight[unit].item()))


def taylor(small: SimpleNamespace) -> dict[str, np.ndarray]:
    model = copy.deepcopy(small.model)
    functional.cross_entropy(model(small.images), small.targets).backward()

    def one(layer: str, unit: int) -> float:
        gradient = filter_of(small, layer, unit, getattr(model, layer).weight.grad)
        return abs(float((gradient * filter_of(small, layer, unit)).mean()))

    return per_unit(small, one)


def gate_slopes(small: SimpleNamespace) -> dict[str, tuple[np.ndarray, int]]:
    """Per layer: d loss / d gate (images, channels), a gate of 1 on each feature map; and the map's elements.

    A gate's slope is the sum over the feature map of activation times gradient.
    """
    model = copy.deepcopy(small.model)
    slopes: dict[str, list[np.ndarray]] = {layer: [] for layer in small.norms}
    sizes: dict[str, int] = {}
    gates: dict[str, torch.Tensor] = {}

    def gated(layer: str, output: torch.Tensor) -> torch.Tensor:
        gates[layer] = torch.ones(output.shape[1], dtype=torch.double, requires_grad=True)
        sizes[layer] = output[0, 0].numel()
        return output * gates[layer].reshape(1, -1, *[1] * (output.ndim - 2))

    for layer, norm in small.norms.items():
        getattr(model, norm).register_forward_hook(lambda m, args, output, layer=layer: gated(layer, output))
    for image, target in zip(small.images, small.targets, strict=True):
        functional.cross_entropy(model(image[None]), target[None]).backward()
        for layer, gate in gates.items():
            slopes[layer].append(gate.grad.numpy())
    return {layer: (np.stack(rows), sizes[layer]) for layer, rows in slopes.items()}


def taylor_activation(small: SimpleNamespace) -> dict[str, np.ndarray]:
    slopes = gate_slopes(small)
    return per_unit(small, lambda layer, unit: float(np.abs(slopes[layer][0][:, unit] / slopes[layer][1]).mean()))


def fisher(small: SimpleNamespace) -> dict[str, np.ndarray]:
    slopes = gate_slopes(small)
    return per_unit(small, lambda layer, unit: float((slopes[layer][0][:, unit] ** 2).mean() / 2))


def random(small: SimpleNamespace) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {group.name: generator.random(group.size) for group in small.graph.groups}


DEFINITIONS = {
    definition.__name__: definition
    for definition in (
        bn_scale,
        fisher,
        geometric_median,
        l1,
        l2,
        l2_next,
        l2_norm,
        random,
        taylor,
        taylor_activation,
    )
}


@every_metric
def test_agrees_with_its_definition(small: SimpleNamespace, name: str) -> None:
    expected = DEFINITIONS[name](small)
    for group, found in zip(small.graph.groups, scores(small, name), strict=True):
        np.testing.assert_allclose(found, expected[group.name], rtol=1e-9, atol=1e-12, err_msg=group.name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_metric
def test_a_gpu_gives_the_same(small: SimpleNamespace, name: str) -> None:
    expected = scores(small, name)
    small.model.cuda()
    for a, b in zip(expected, scores(small, name), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)
