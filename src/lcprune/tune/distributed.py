"""Data-parallel training under `torchrun` or `accelerate launch`.

Both start one process per device and say so in the environment. Gradients are averaged by PyTorch's
DistributedDataParallel; batch-norm statistics are taken over the batches of all processes together, so that
any number of processes computes what one process does with the same global batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lcprune.errors import TuneError


@dataclass(frozen=True)
class World:
    """This process among its siblings, and what it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether `flag` holds in any process."""
        if self.size == 1:
            return flag
        held = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(held, op=dist.ReduceOp.MAX)
        return bool(held.item())

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.size


@contextmanager
def this_world(device: torch.device) -> Iterator[World]:
    """This process among its siblings, if a launcher started some; on GPUs every process takes its own device."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
    if size == 1:
        yield World(0, 1, device)
        return
    if not dist.is_available():
        raise TuneError("this build of PyTorch has no torch.distributed, which WORLD_SIZE > 1 asks for")
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    owned = not dist.is_initialized()
    if owned:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if owned and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def parallel(model: nn.Module, world: World) -> Iterator[nn.Module]:
    """`model`, wrapped where there are several processes so that gradients and batch-norm statistics are shared.

    Meanwhile its batch-norm layers are others with the same tensors. It is on its device already.
    """
    if world.size == 1:
        yield model
        return
    norms = {
        name: module for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, _BatchNorm)
    }
    try:
        if world.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
            yield nn.parallel.DistributedDataParallel(model, device_ids=[world.device.index])
        else:
            for name, norm in norms.items():
                if norm.track_running_stats:
                    _put(model, name, _shared(norm))
            yield nn.parallel.DistributedDataParallel(model)
    finally:
        for name, norm in norms.items():
            _put(model, name, norm)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


class _Sum(torch.autograd.Function):
    """Sum over processes; the gradient of a sum is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return _Sum.apply(gradient)


class _SharedBatchNorm(_BatchNorm):
    """Batch norm over all processes on a CPU, for which PyTorch's SyncBatchNorm does not exist."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        # Sums of many numbers, in an order that depends on the number of processes: kept in double precision.
        mean = (_Sum.apply(input.sum(axes, dtype=torch.float64)) / count).to(input.dtype)
        shape = [-1 if axis == 1 else 1 for axis in range(input.dim())]
        centred = input - mean.view(shape)
        variance = (_Sum.apply(centred.square().sum(axes, dtype=torch.float64)) / count).to(input.dtype)
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), share)
        scaled = centred * torch.rsqrt(variance + self.eps).view(shape)
        return scaled * self.weight.view(shape) + self.bias.view(shape) if self.affine else scaled


def _shared(norm: _BatchNorm) -> _SharedBatchNorm:
    """The same tensors under a new class: what is trained is still the caller's network."""
    shared = _SharedBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine)
    shared._parameters, shared._buffers = norm._parameters, norm._buffers
    return shared.train(norm.training)
