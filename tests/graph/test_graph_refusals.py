"""Networks that cannot be followed as they are: traced all the same, or refused with what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracle import worst_difference
from selections import select
from torch import Tensor, nn
from torch.nn.utils import prune
from zoo import ZOO

import lcprune
from lcprune.graph.label_pass import LabelPass


def works(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Trace, cut to half, run and verify."""
    graph = lcprune.trace(model, inputs)
    plan = graph.plan(select(graph, "half"))
    smaller = plan.apply(model)
    with torch.no_grad():
        expected, found = model(*inputs), smaller(*inputs)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert lcprune.verify(model, plan, inputs).ok


def works_or_refuses(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    try:
        works(model, inputs)
    except lcprune.TraceError as error:
        message = str(error)
        assert len(message) > 30, f"a refusal should say what to do: {message!r}"
        assert "Traceback" not in message and len(message) < 2000


def residual() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ZOO["Residual"].factory(), ZOO["Residual"].inputs()


def test_single_tensor_instead_of_a_tuple() -> None:
    model, inputs = residual()
    assert lcprune.trace(model, inputs[0]).macs == lcprune.trace(model, inputs).macs


def test_training_mode() -> None:
    model, inputs = residual()
    model.train()
    graph = lcprune.trace(model, inputs)
    assert graph.groups and model.training


@pytest.mark.cpu_bf16
def test_half_precision() -> None:
    model, inputs = residual()
    works(model.bfloat16(), tuple(tensor.bfloat16() for tensor in inputs))


def test_data_parallel() -> None:
    model, inputs = residual()
    works_or_refuses(nn.DataParallel(model), inputs)


def test_compiled_model() -> None:
    model, inputs = residual()
    works_or_refuses(torch.compile(model, backend="eager"), inputs)


def test_scripted_model() -> None:
    model, inputs = residual()
    works_or_refuses(torch.jit.trace(model, inputs), inputs)


def test_dynamically_quantised_model() -> None:
    model = ZOO["Perceptron"].factory()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    works_or_refuses(quantised, ZOO["Perceptron"].inputs())


def test_old_style_weight_norm() -> None:
    model, inputs = residual()
    nn.utils.weight_norm(model.block1[0])
    works_or_refuses(model, inputs)


def test_pruning_masks_of_torch() -> None:
    model, inputs = residual()
    prune.random_unstructured(model.block1[0], "weight", amount=0.3)
    works_or_refuses(model, inputs)


def test_custom_parametrisation() -> None:
    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + weight.flip(-1)

    model, inputs = residual()
    nn.utils.parametrize.register_parametrization(model.block1[0], "weight", Symmetric())
    works_or_refuses(model, inputs)


def test_orthogonal_parametrisation() -> None:
    model, inputs = residual()
    nn.utils.parametrizations.orthogonal(model.block1[0])
    works_or_refuses(model, inputs)


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        if x.sum() > 0:
            x = x * 2
        return self.head(x)


def test_branch_on_data_is_traced_or_refused() -> None:
    works_or_refuses(DataDependent().eval(), (torch.randn(2, 3, 8, 8),))


class BranchBehindItsKind(nn.Module):
    """Fewer channels are multiplied once more, right after another multiplication."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 6, 1), nn.Parameter(torch.ones(3))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.sigmoid(self.conv(x))
        x = x * self.scale.view(1, -1, 1, 1)
        inner = inner if inner.shape[1] > 5 else inner * 2
        return self.head(inner) + x.mean()


def test_a_branch_behind_an_operator_of_its_kind_is_seen() -> None:
    graph = lcprune.trace(BranchBehindItsKind().eval(), torch.randn(2, 3, 8, 8))
    assert not graph.groups and any("shape" in reason or "run" in reason for reason in graph.frozen.values())


class OrderedWeights(nn.Module):
    """A layer whose weight goes through an operator that nothing is known of (as where quantization is trained for)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.conv2d(x, self.conv.weight.cummax(0).values))


def test_a_layer_whose_weight_cannot_be_followed_has_a_reason() -> None:
    graph = lcprune.trace(OrderedWeights(), torch.randn(2, 3, 8, 8))
    assert not graph.groups and "cummax" in graph.frozen["conv"] and "output" in graph.frozen["head"]


class NormOfFew(nn.Module):
    """Normalises what is large, if there is anything."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 1), norm, nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = (x.amax((1, 2, 3)) > 10).nonzero()[:, 0]
        return self.head(self.norm(self.conv(x[large])))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.GroupNorm(3, 6)], ids=str)
def test_a_norm_of_nothing_is_cut_like_any_other_or_has_a_reason(norm: nn.Module) -> None:
    model, x = NormOfFew(norm).eval(), torch.randn(2, 3, 8, 8)
    graph = lcprune.trace(model, x)
    smaller = graph.plan(select(graph, "half")).apply(model)
    assert smaller(x + 20).shape == (2, 4, 8, 8)
    assert graph.groups or "norm: nothing of the example is normalised" in graph.frozen["conv"]
    assert lcprune.trace(model, x + 20).groups


class ThroughNumpy(nn.Module):
    """What a compiler cannot see: the channels leave torch and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(torch.from_numpy(x.detach().numpy()[:, ::-1].copy()))


def test_detour_through_numpy_is_traced_or_refused() -> None:
    works_or_refuses(ThroughNumpy().eval(), (torch.randn(2, 3, 8, 8),))


class DataDependentShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).flatten(2).transpose(1, 2).reshape(-1, 8)
        return self.head(x[x.sum(1) > 0])


def test_data_dependent_shape_is_traced_or_refused() -> None:
    works_or_refuses(DataDependentShape().eval(), (torch.randn(2, 3, 8, 8),))


class Crashes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + torch.zeros(7)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: Crashes(), lambda: torch.randn(2, 3, 8, 8)),
        (lambda: residual()[0], lambda: torch.randn(2, 4, 8, 8)),
        (lambda: residual()[0], lambda: (torch.randn(2, 3, 8, 8), torch.randn(1))),
        (lambda: residual()[0], lambda: torch.randn(2, 3, 8, 8).double()),
        (lambda: residual()[0], lambda: "an image"),
    ],
    ids=["crashing network", "wrong channels", "too many inputs", "wrong dtype", "not a tensor"],
)
def test_wrong_inputs_are_refused(make: Callable[[], nn.Module], inputs: Callable[[], object]) -> None:
    with pytest.raises(lcprune.TraceError) as error:
        lcprune.trace(make(), inputs())
    assert len(str(error.value)) > 20


def test_network_without_anything_to_prune() -> None:
    model, inputs = nn.Conv2d(3, 4, 3).eval(), (torch.randn(2, 3, 8, 8),)
    try:
        graph = lcprune.trace(model, inputs)
    except lcprune.TraceError:
        return
    assert graph.groups == () and graph.frozen
    smaller = graph.plan({}).apply(model)
    assert worst_difference(smaller(*inputs), model(*inputs)) == 0.0


def test_meta_device_is_traced_or_refused() -> None:
    with torch.device("meta"):
        model, inputs = (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval(),
            torch.randn(1, 3, 8, 8),
        )
    try:
        assert lcprune.trace(model, inputs).macs == 3 * 8 * 9 * 36 + 8 * 4 * 36
    except lcprune.TraceError as error:
        assert "meta" in str(error)


def test_one_channel_alone_that_the_code_squeezes_away() -> None:
    """Of few channels none can go; of many a plan with one is refused, and all others are made."""

    class Squeezed(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, width, 3), nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.adaptive_avg_pool2d(self.conv(x), 1).squeeze())

    x = torch.randn(2, 3, 8, 8)
    assert not lcprune.trace(Squeezed(6), x).groups
    model = Squeezed(12)
    graph = lcprune.trace(model, x)
    assert lcprune.verify(model, graph.plan({"conv": [3, 7]}), x)
    with pytest.raises(lcprune.PlanError, match="cannot be cut"):
        graph.plan({"conv": [3]})


@pytest.mark.parametrize(
    ("code", "weight"),
    [
        (lambda x, w: F.conv_transpose2d(x, w), torch.empty(2, 4, 1, 1)),
        (lambda x, w: F.conv2d(x, w, groups=2), torch.empty(3, 2, 1, 1)),
    ],
)
def test_weights_that_do_not_fit_are_seen_on_shapes(code: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight.to("meta"))

        def forward(self, x: Tensor) -> Tensor:
            return code(x, self.weight)

    with pytest.raises(RuntimeError, match="does not fit"):
        LabelPass(Layer(), {}).forward((torch.empty(1, 4, 5, 5, device="meta"),))
