"""One training step: eager, or captured once as a CUDA graph and replayed.

A step of a CIFAR network at batch 128 is hundreds of kernels of a few microseconds; launching them one by one
from Python leaves a GPU idle most of the time. The captured step reads its batch, its learning rate and its
place in the epoch from device memory, and writes its loss there, so replays follow one another without the
host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from lcprune.batches import call
from lcprune.tune.feed import Feed
from lcprune.tune.recipe import Recipe

_WARMUP_STEPS = 4  # cuDNN chooses its kernels and the allocator settles before the capture


class _Part(NamedTuple):
    """Parameters that are updated alike: with one learning rate at the start, which falls as the recipe says."""

    params: list[Tensor]
    momentum: list[Tensor]
    lr: float
    recipe: Recipe


class Stepper:
    """Forward, backward and update of one batch, with all its results left on the device.

    A fleet steps all its members at once: their batches follow one another, parameters have a leading dimension of
    members, and the sum of their losses is minimised, so that each gets its own gradient.

    Args:
        recipes: one, or one per member. Where they differ, each member's share of a parameter is updated by itself.
        groups: parameters, and the learning rate that each member begins with.
        capture: replay a CUDA graph. Parameters and buffers must stay where they are from then on.
        loss_fn: `loss_fn(output, target)`; None is cross entropy, as the recipe has it.
        classifies: targets are classes, one per sample, so that hits can be counted.

    Attributes:
        losses: float32 (steps, members), the loss of each step of this epoch.
        correct: int64 (members,), correctly classified images of this epoch.
        momentum: one tensor per parameter, like it.
    """

    def __init__(
        self,
        network: nn.Module,
        feed: Feed,
        recipes: Sequence[Recipe],
        groups: Sequence[tuple[list[nn.Parameter], Sequence[float]]],
        teacher: nn.Module | None = None,
        capture: bool = False,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        classifies: bool = True,
    ) -> None:
        self.network, self.feed, self.recipe, self.teacher = network, feed, recipes[0], teacher
        self.loss_fn, self.classifies = loss_fn, classifies
        self.device = feed.cursor.device
        self.smoothing = torch.tensor([recipe.label_smoothing for recipe in recipes], device=self.device)
        self.momentum: list[Tensor] = []
        self.shares: list[tuple[nn.Parameter, list[Tensor]]] = []  # each member's, where they are updated apart
        self.parts = self._parts(recipes, groups)
        # Learning rates in device memory can change between replays; on a CPU numbers do.
        self.rates = torch.zeros(len(self.parts), device=self.device)
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.SGD(
            [
                {"params": part.params, "lr": rate if on_gpu else part.lr, "weight_decay": part.recipe.weight_decay}
                for part, rate in zip(self.parts, self.rates, strict=True)
            ],
            momentum=self.recipe.momentum,
            nesterov=self.recipe.nesterov and self.recipe.momentum > 0,
            fused=True,
        )
        for part in self.parts:
            for parameter, buffer in zip(part.params, part.momentum, strict=False):
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        self.losses = torch.zeros(feed.steps, len(recipes), device=self.device)
        self.correct = torch.zeros(len(recipes), dtype=torch.int64, device=self.device)
        kind = torch.float32 if on_gpu else torch.float64
        self.epoch_rates = torch.zeros(feed.steps, len(self.parts), dtype=kind, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if capture:
            self.capture()

    def _parts(
        self, recipes: Sequence[Recipe], groups: Sequence[tuple[list[nn.Parameter], Sequence[float]]]
    ) -> list[_Part]:
        alike = len({replace(recipe, seed=0, name="") for recipe in recipes}) == 1
        parts = []
        for params, rates in groups:
            # Zeros are what the first step assumes; having them now makes every step the same code.
            momentum = [torch.zeros_like(parameter) for parameter in params if self.recipe.momentum]
            self.momentum += momentum
            if alike:
                parts.append(_Part([*params], momentum, rates[0], self.recipe))
                continue
            shares = [[*parameter.detach()] for parameter in params]
            self.shares += zip(params, shares, strict=True)
            for number, (recipe, rate) in enumerate(zip(recipes, rates, strict=True)):
                buffers = [buffer[number] for buffer in momentum]
                parts.append(_Part([own[number] for own in shares], buffers, rate, recipe))
        return parts

    def start(self, epoch: int, step: int) -> None:
        """Prepare for an epoch, from the given step on."""
        rates = [part.lr * part.recipe.factors(epoch, self.feed.steps) for part in self.parts]
        self.epoch_rates.copy_(torch.from_numpy(np.stack(rates, axis=1)))
        if step == 0:
            self.losses.zero_()
            self.correct.zero_()
        self.feed.start(epoch, step)

    def step(self, position: int) -> None:
        """Run one step; `position` is its place in the epoch, as the cursor says too."""
        self.feed.advance()
        if self.graph is not None:
            self.graph.replay()
            return
        if self.device.type != "cuda":
            for group, rate in zip(self.optimizer.param_groups, self.epoch_rates[position].tolist(), strict=True):
                group["lr"] = rate
        self.network.zero_grad(set_to_none=True)
        self._body()

    def _body(self) -> None:
        """Everything that happens on the device. Nothing in here may wait for it."""
        cursor = self.feed.cursor
        images, labels = self.feed.fetch()
        if not self.recipe.channels_last and isinstance(images, Tensor):
            images = images.contiguous()
        if self.device.type == "cuda":
            self.rates.copy_(self.epoch_rates.index_select(0, cursor).view(-1))
        with autocast(self.device, self.recipe.precision):
            logits = call(self.network, images)
            taught = None
            if self.teacher is not None:
                with torch.no_grad():
                    taught = call(self.teacher, images)
        loss = self._loss(logits, labels, taught)
        (loss.sum() if loss.dim() else loss).backward()
        for parameter, shares in self.shares:
            assert parameter.grad is not None
            for share, gradient in zip(shares, parameter.grad, strict=True):
                share.grad = gradient
        self.optimizer.step()
        with torch.no_grad():
            self.losses.index_copy_(0, cursor, loss.detach().view(1, -1))
            if self.classifies:
                self.correct.add_((logits.detach().argmax(1) == labels).view(len(self.correct), -1).sum(1))
            cursor.add_(1)

    def _loss(self, logits: Any, labels: Any, taught: Tensor | None) -> Tensor:
        if self.loss_fn is not None:
            loss: Tensor = self.loss_fn(in_float32(logits), labels)
            return loss
        if len(self.smoothing) == 1:
            return training_loss(logits, labels, self.recipe, taught)
        return member_losses(logits, labels, self.smoothing, self.recipe, taught)

    def capture(self) -> None:
        """Capture the step; its batches, learning rates and weights stay where they are from then on."""
        # The warm-up steps leave no trace: all is put back in place, at the same addresses.
        live = [*self.network.parameters(), *self.network.buffers(), *self.momentum, self.losses, self.correct]
        saved = [tensor.detach().clone() for tensor in live]
        self.feed.start(0, 0)
        self.feed.advance()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARMUP_STEPS):
                self.feed.cursor.zero_()
                self.network.zero_grad(set_to_none=True)
                self._body()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        self.feed.cursor.zero_()
        # Without gradients to add to, the captured backward pass writes them afresh at every replay.
        self.network.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self._body()
        with torch.no_grad():
            for tensor, value in zip(live, saved, strict=True):
                tensor.copy_(value)


def training_loss(logits: Tensor, labels: Tensor, recipe: Recipe, teacher_logits: Tensor | None = None) -> Tensor:
    """The loss of one batch, float32, from (B, classes), int64 (B,) and (B, classes) of the network that teaches.

    Distillation after Hinton et al., https://arxiv.org/abs/1503.02531: the squared temperature keeps the size of the
    gradients when the temperature changes.
    """
    logits = logits.float()
    loss = functional.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
    if teacher_logits is None or recipe.distill == 0:
        return loss
    return _taught(loss, _distances(logits, teacher_logits, recipe).sum() / len(logits), recipe)


def member_losses(
    logits: Tensor, labels: Tensor, smoothing: Tensor, recipe: Recipe, teacher_logits: Tensor | None = None
) -> Tensor:
    """`training_loss` of each member of a fleet, float32 (members,), with a label smoothing (members,) for each.

    Members' batches lie one after another in (members * B, classes) and (members * B,).
    """
    members, logits = len(smoothing), logits.float()
    hard = functional.cross_entropy(logits, labels, reduction="none").view(members, -1).mean(1)
    even = -functional.log_softmax(logits, dim=1).mean(1).view(members, -1).mean(1)
    loss = (1 - smoothing) * hard + smoothing * even
    if teacher_logits is None or recipe.distill == 0:
        return loss
    distances = _distances(logits, teacher_logits, recipe).sum(1).view(members, -1).mean(1)
    return _taught(loss, distances, recipe)


def _distances(logits: Tensor, teacher_logits: Tensor, recipe: Recipe) -> Tensor:
    """(B, classes): terms of the distance between softened outputs."""
    ours = functional.log_softmax(logits / recipe.temperature, dim=1)
    theirs = functional.log_softmax(teacher_logits.float() / recipe.temperature, dim=1)
    return functional.kl_div(ours, theirs, reduction="none", log_target=True)


def _taught(loss: Tensor, distance: Tensor, recipe: Recipe) -> Tensor:
    return (1 - recipe.distill) * loss + recipe.distill * recipe.temperature**2 * distance


def in_float32(output: Any) -> Any:
    """What a network gave, out of half precision."""
    return pytree.tree_map(lambda leaf: leaf.float() if leaf.dtype == torch.bfloat16 else leaf, output)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context of a precision; its weight cache would outlive a captured graph, so it is off."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
