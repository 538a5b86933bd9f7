"""What a pruned network inherits, and what the original keeps."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from oracle import worst_difference
from selections import select, traced
from torch import nn
from zoo import ZOO

import lcprune


def cut(model: nn.Module, inputs: tuple[torch.Tensor, ...], kind: str = "half") -> tuple[lcprune.Plan, nn.Module]:
    graph = lcprune.trace(model, inputs)
    plan = graph.plan(select(graph, kind))
    return plan, plan.apply(model)


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.bfloat16, marks=pytest.mark.cpu_bf16), torch.float16]
)
def test_dtype_carries_over(dtype: torch.dtype) -> None:
    entry = ZOO["Residual"]
    model = entry.factory().to(dtype)
    inputs = tuple(tensor.to(dtype) for tensor in entry.inputs())
    plan, smaller = cut(model, inputs)
    for key, tensor in smaller.state_dict().items():
        assert tensor.dtype == model.state_dict()[key].dtype
    assert smaller(*inputs).dtype == dtype
    assert lcprune.verify(model, plan, inputs).ok


def test_double_precision_is_exact_to_its_own_rounding() -> None:
    entry = ZOO["Residual"]
    model, inputs = entry.factory().double(), tuple(tensor.double() for tensor in entry.inputs())
    plan, _ = cut(model, inputs)
    assert lcprune.verify(model, plan, inputs).max_error < 1e-12


def test_plan_made_in_one_dtype_applies_in_another() -> None:
    entry = ZOO["Residual"]
    plan, _ = cut(entry.factory(), entry.inputs())
    assert plan.apply(entry.factory().double())(entry.inputs()[0].double()).dtype == torch.float64


def test_mode_carries_over_module_by_module() -> None:
    entry = ZOO["Residual"]
    model = entry.factory().train()
    model.bn.eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plan, smaller = cut(model, entry.inputs())
    assert [m.training for m in model.modules()] == [m.training for m in smaller.modules()]
    assert model.training and not model.bn.training
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), f"{key} changed by tracing in training mode"
    assert lcprune.verify(model, plan, entry.inputs()).ok
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), f"{key} changed by verifying in training mode"
    assert [m.training for m in model.modules()] == [m.training for m in smaller.modules()]


class _Waves(nn.Module):
    """Weighs the frequencies of what its layers give."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.last(torch.relu(self.inner(x)))
        return given + torch.fft.irfft(torch.fft.rfft(x.mean((1, 2))) * self.weight)[:, None, None]


def test_complex_parameters_are_trained_as_before() -> None:
    model, inputs = _Waves(), (torch.randn(2, 3, 8, 8),)
    plan, smaller = cut(model, inputs)
    assert plan.macs < plan.original_macs
    assert all(parameter.requires_grad for parameter in smaller.parameters())
    assert lcprune.verify(model, plan, inputs).ok


def test_frozen_parameters_stay_frozen() -> None:
    entry = ZOO["Residual"]
    model = entry.factory()
    model.stem.requires_grad_(False)
    model.bn.weight.requires_grad_(False)
    _, smaller = cut(model, entry.inputs())
    expected = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    assert {key: parameter.requires_grad for key, parameter in smaller.named_parameters()} == expected


def test_all_frozen_model_is_traced() -> None:
    entry = ZOO["Residual"]
    _, smaller = cut(entry.factory().requires_grad_(False), entry.inputs())
    assert not any(parameter.requires_grad for parameter in smaller.parameters())


def test_memory_format_carries_over() -> None:
    entry = ZOO["Residual"]
    model = entry.factory().to(memory_format=torch.channels_last)
    inputs = tuple(tensor.to(memory_format=torch.channels_last) for tensor in entry.inputs())
    _, smaller = cut(model, inputs)
    assert smaller.block1[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not smaller.block1[0].weight.is_contiguous()


def test_weights_are_contiguous_leaves_that_own_their_storage() -> None:
    entry = ZOO["Residual"]
    model = entry.factory()
    _, smaller = cut(model, entry.inputs())
    for key, parameter in smaller.named_parameters():
        assert isinstance(parameter, nn.Parameter) and parameter.is_leaf, key
        assert parameter.is_contiguous(), key
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size(), key
    originals = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    for key, tensor in smaller.state_dict().items():
        assert tensor.untyped_storage().data_ptr() not in originals, f"{key} is shared with the original"


def test_gradients_and_hooks_of_the_original_are_left_alone() -> None:
    entry = ZOO["Residual"]
    model = entry.factory()
    model(*entry.inputs()).sum().backward()
    gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    _, smaller = cut(model, entry.inputs())
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[key])
    for key, parameter in smaller.named_parameters():
        assert parameter.grad is None or parameter.grad.shape == parameter.shape, key


def test_tied_weights_stay_tied() -> None:
    model, _, graph = traced("TiedWeights")
    smaller = graph.plan(select(graph, "half")).apply(model)
    assert smaller.conv2.weight is smaller.conv3.weight


def test_trace_leaves_no_trace() -> None:
    """Plain attributes, buffers that are not saved and hooks are as before."""
    entry = ZOO["BlurByShape"]
    model = entry.factory()
    calls: list[int] = []
    model.conv.register_forward_hook(lambda *_: calls.append(1))
    kernel, hooks = model.kernel.clone(), len(model.conv._forward_hooks)
    state = torch.random.get_rng_state()
    plan, smaller = cut(model, entry.inputs())
    lcprune.verify(model, plan, entry.inputs())
    assert torch.equal(model.kernel, kernel) and len(model.conv._forward_hooks) == hooks
    assert torch.equal(torch.random.get_rng_state(), state), "the global random state moved"
    assert smaller.kernel.shape[0] == smaller.conv.out_channels
    assert "kernel" not in smaller.state_dict()


def test_plan_applies_to_other_weights_of_the_same_network() -> None:
    entry = ZOO["Residual"]
    plan, _ = cut(entry.factory(), entry.inputs())
    other = entry.factory()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    verification = lcprune.verify(other, plan, entry.inputs())
    assert verification.ok and verification.max_error < 1e-4


def test_result_can_be_copied_and_pickled() -> None:
    _, inputs, _ = traced("OptionAShortcut")
    _, smaller = cut(ZOO["OptionAShortcut"].factory(), inputs)
    expected = smaller(*inputs)
    assert worst_difference(copy.deepcopy(smaller)(*inputs), expected) == 0.0
    assert worst_difference(pickle.loads(pickle.dumps(smaller))(*inputs), expected) == 0.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_carries_over() -> None:
    entry = ZOO["Residual"]
    model, inputs = entry.factory().cuda(), tuple(tensor.cuda() for tensor in entry.inputs())
    plan, smaller = cut(model, inputs)
    assert all(tensor.is_cuda for tensor in smaller.state_dict().values())
    assert lcprune.verify(model, plan, inputs).ok
