"""Networks whose cuts used to come back broken: odd modes, computed weights, hooks, sizes used as settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import counted_macs
from torch import Tensor, nn

import lcprune
from lcprune.export import export
from lcprune.vision import import_torchvision

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Small(nn.Module):
    """Two convolutions with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 10, 3)

    def inside(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.first(x)))

    def forward(self, x: Tensor) -> Any:
        return self.second(self.inside(x)).mean((2, 3))


def half(model: nn.Module, x: Tensor = X) -> tuple[lcprune.ChannelGraph, lcprune.Plan, nn.Module]:
    graph = lcprune.trace(model, x)
    plan = graph.plan({group.name: range(0, group.size, 2) for group in graph.groups})
    verification = lcprune.verify(model, plan, x)
    assert verification.ok, verification
    return graph, plan, plan.apply(model)


def test_mode_of_a_feature_extractor_carries_over() -> None:
    models = import_torchvision().models
    from torchvision.models.feature_extraction import create_feature_extractor

    network = models.resnet18(weights=None, num_classes=10)
    extractor = create_feature_extractor(network, return_nodes={"layer2": "features", "fc": "logits"}).eval()
    _, _, smaller = half(extractor, torch.randn(1, 3, 32, 32))
    assert not any(module.training for module in smaller.modules())
    assert smaller.train().training


class DeepSupervision(Small):
    """A second head that only training runs."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Conv2d(8, 6, 1)
        self.aux_out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.inside(x)
        out = self.second(y).mean((2, 3))
        return (out, self.aux_out(F.relu(self.aux(y)).mean((2, 3)))) if self.training else out


def test_layers_that_only_training_runs_are_cut_and_checked() -> None:
    model = DeepSupervision()
    graph, plan, smaller = half(model)
    assert smaller.aux.weight.shape[:2] == (3, 4)
    smaller.train()(X)[1].sum().backward()
    # They cost nothing where costs are counted, in evaluation mode.
    assert graph.macs == counted_macs(model.eval(), (X,))
    assert plan.macs == counted_macs(smaller.eval(), (X,))
    with torch.no_grad():
        smaller.aux.weight.copy_(smaller.aux.weight.flip(1))
    assert not lcprune.verify(model, plan, X, pruned=smaller).ok


def test_googlenet_trains_after_a_cut() -> None:
    models = import_torchvision().models
    model = models.googlenet(weights=None, aux_logits=True, init_weights=False, num_classes=10)
    x = torch.randn(2, 3, 224, 224)
    graph = lcprune.trace(model, x)
    smaller = graph.plan({group.name: range(0, group.size, 2) for group in graph.groups}).apply(model)
    outputs = smaller.train()(x)
    assert [tuple(output.shape) for output in outputs] == [(2, 10)] * 3
    assert not graph.unread


def test_weights_that_nobody_reads_are_named() -> None:
    class Unused(Small):
        def __init__(self) -> None:
            super().__init__()
            self.never = nn.Linear(8, 8)

    graph, _, smaller = half(Unused())
    assert graph.unread == ("never.weight", "never.bias")
    assert "never.weight" in graph.explain()
    assert smaller.never.weight.shape == (8, 8)


def test_training_that_needs_more_than_the_example_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Targets(DeepSupervision):
        def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
            assert target is not None or not self.training, "targets are needed in training"
            return super().forward(x)

    lcprune.trace(DeepSupervision(), X)
    assert not caplog.records
    graph = lcprune.trace(Targets(), X)
    assert "aux.weight" in graph.unread
    assert "aux.weight, first of 4 weights" in caplog.text and "targets are needed" in caplog.text


def test_training_that_looks_at_values_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    class Looks(DeepSupervision):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x if not self.training or float(x.detach().sum()) < 1e9 else -x)

    graph = lcprune.trace(Looks(), X)
    assert not caplog.records and "aux.weight" not in graph.unread


def _old_weight_norm(model: Small) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(model.first)


def _new_weight_norm(model: Small) -> None:
    nn.utils.parametrizations.weight_norm(model.first)


def _masked(model: Small) -> None:
    from torch.nn.utils import prune

    prune.random_unstructured(model.first, "weight", 0.3)
    prune.l1_unstructured(model.second, "weight", 0.5)


@pytest.mark.parametrize("run_before", [False, True])
@pytest.mark.parametrize("wrap", [_old_weight_norm, _new_weight_norm, _masked])
def test_computed_weights_are_cut_saved_and_loaded(
    wrap: Callable[[Small], None], run_before: bool, tmp_path: Path
) -> None:
    model, fresh = Small().eval(), Small().eval()
    wrap(model)
    wrap(fresh)
    if run_before:
        with torch.no_grad():
            model(X)
    _, plan, smaller = half(model)
    assert smaller.first.out_channels == 4 and smaller.first.weight.shape[0] == 4
    lcprune.save(tmp_path, smaller, plan)
    loaded = lcprune.load(tmp_path, fresh)
    with torch.no_grad():
        assert torch.equal(loaded(X), smaller(X))
        assert torch.equal(loaded.first.weight, smaller.first.weight)
    smaller.train()(X).sum().backward()


@pytest.mark.parametrize("wrap", [_old_weight_norm, _new_weight_norm, _masked])
def test_computed_weights_are_judged_repaired_and_exported(
    wrap: Callable[[Small], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Small()
    wrap(model)
    model(X)  # PyTorch itself can no longer copy it
    method = lcprune.LcP(lcprune.Search(pool=2, iterations=2))
    front = lcprune.pareto(model.eval(), X, macs=["70%", "50%"], methods=[method], data=[X], progress=False)
    assert len(front.points) == 2
    result = lcprune.prune(model, X, macs="50%", method=method, data=[X], progress=False)
    result.model.train()(X)
    export(result.model, X, tmp_path / "small.pt2", "torch")


def test_layers_without_a_size_are_named() -> None:
    lazy = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LazyConv2d(4, 3))
    with pytest.raises(lcprune.TraceError, match=r"1\.weight has no size yet: run the network once"):
        lcprune.trace(lazy, X)
    lazy(X)
    assert lcprune.trace(lazy, X).groups


class Chosen(nn.Module):
    """The sign of an image says which layer reads its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.readers = nn.ModuleList([nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return torch.stack([self.readers[int(float(image.sum()) > 0)](own) for image, own in zip(x, y, strict=True)])


def test_layers_that_the_example_does_not_run_are_asked_for() -> None:
    model, both = Chosen().eval(), torch.stack([X[0], -X[0]])
    graph = lcprune.trace(model, both[:1].repeat(2, 1, 1, 1))
    assert any(name.startswith("readers.") for name in graph.unread)
    with pytest.raises(lcprune.PlanError, match="more example inputs, on which all of them do"):
        lcprune.verify(model, graph.plan({"first": range(5)}), graph.example_inputs)
    graph = lcprune.trace(model, both)
    assert not graph.unread and lcprune.verify(model, graph.plan({"first": range(5)}), both).ok


def test_scripted_part_is_refused_by_name() -> None:
    model = Small()
    model.second = torch.jit.script(nn.Conv2d(8, 10, 3))
    with pytest.raises(lcprune.TraceError, match="second is scripted"):
        lcprune.trace(model, X)


@pytest.mark.cpu_bf16
def test_part_in_half_precision_is_compared_in_it() -> None:
    class Mixed(Small):
        def __init__(self) -> None:
            super().__init__()
            self.second.to(torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.inside(x).bfloat16()).float().mean((2, 3))

    model = Mixed()
    _, plan, smaller = half(model)
    assert "bfloat16" in lcprune.verify(model, plan, X).dtype
    with torch.no_grad():
        smaller.second.weight.copy_(smaller.second.weight.flip(1))
    assert not lcprune.verify(model, plan, X, pruned=smaller).ok


SETTINGS: dict[str, Callable[[Small, Tensor], Tensor]] = {
    "eps": lambda net, y: F.batch_norm(y, net.norm.running_mean, net.norm.running_var, eps=1 / y.shape[1]),
    "padding": lambda net, y: F.pad(y, (y.shape[1] // 4,) * 4),
    "pool": lambda net, y: F.avg_pool2d(y, max(1, y.shape[1] // 4), stride=1),
    "dilation": lambda net, y: F.conv2d(F.pad(y, (4,) * 4), net.norm.weight.new_ones(8, 1, 2, 2)[: y.shape[1]],
                                        dilation=max(1, y.shape[1] // 4), groups=y.shape[1]),
    "branch": lambda net, y: y * 2 if y.shape[1] > 6 else y,
    "missing step": lambda net, y: y if y.shape[1] < 7 else y.sigmoid(),
}  # fmt: skip


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_and_branches_that_follow_a_size_freeze_it(kind: str) -> None:
    class Odd(Small):
        def inside(self, x: Tensor) -> Tensor:
            return SETTINGS[kind](self, super().inside(x))

    graph, _, _ = half(Odd())
    assert not graph.groups
    assert "runs other operators, or with other settings" in graph.frozen["first"] or kind == "dilation"


def test_hook_that_keeps_activations_leaves_the_original_alone() -> None:
    model = Small()
    model.last = None
    model.first.register_forward_hook(lambda module, args, out: setattr(model, "last", out))
    half(model)
    assert model.last is None


def test_hook_that_writes_into_the_original_is_named() -> None:
    model = Small()
    model.register_buffer("seen", torch.zeros(8))

    def count(module: nn.Module, args: Any, out: Tensor) -> None:
        model.seen.add_(out.mean((0, 2, 3)))

    model.first.register_forward_hook(count)
    with pytest.raises(lcprune.TraceError, match="seen of the network was written to"):
        half(model)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), X[0]),
        (nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3)), X[0, :, 0]),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), X[0, 0, 0]),
    ],
)
def test_example_without_a_batch_is_one_sample(model: nn.Module, x: Tensor) -> None:
    batched = lcprune.trace(model, x[None])
    graph, plan, smaller = half(model, x)
    assert graph.macs == batched.macs == counted_macs(model, (x[None],))
    assert plan.macs == counted_macs(smaller, (x[None],))


def test_layers_of_one_channel_cost_something() -> None:
    """A 1x1 convolution from one channel to one has no axis that could be labelled."""
    model = nn.Sequential(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 4, 1))
    assert lcprune.trace(model, X).macs == counted_macs(model, (X,))
    linear = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 1), nn.Linear(1, 3))
    assert lcprune.trace(linear, X[0, 0]).macs == counted_macs(linear, (X[0, 0],))
