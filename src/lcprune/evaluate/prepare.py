"""What may be done to a candidate before it is judged: new batch-norm statistics, or a few steps of tuning.

A lower loss right after cutting does not by itself give a better tuned network, least of all where every cut network
is no better than guessing. Either preparation moves the objective nearer to what counts, at a price per candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lcprune.errors import ConfigError
from lcprune.evaluate.draw import Batch


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Run a network on a batch's inputs: a tensor, a tuple of them, or a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def loss_of(loss_fn: Callable[[Any, Any], Any], output: Any, target: Any) -> torch.Tensor:
    """The loss of a batch.

    Raises:
        ConfigError: `loss_fn` does not give one number.
    """
    loss = torch.as_tensor(loss_fn(output, target))
    if loss.numel() != 1:
        raise ConfigError(
            f"loss_fn gave a tensor of shape {tuple(loss.shape)}, not one number: let it give the mean over the batch"
        )
    return loss.detach().reshape(())


def statistics_of(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms of a network that keep statistics."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return [norm for norm in norms if norm.track_running_stats]


def by_batch_(model: nn.Module) -> nn.Module:
    """Let batch norms use the statistics of each batch in evaluation mode too, in place; gives the network back."""
    for norm in statistics_of(model):
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return model


@torch.no_grad()
def guessing_loss(
    model: nn.Module, batches: Sequence[Batch], loss_fn: Callable[[Any, Any], torch.Tensor]
) -> float | None:
    """Loss of a network that gives every image the same answer: the mean of what `model` answers, or all zeros.

    The mean of a classifier's logits is no good guess where it is sure of itself; zeros leave all classes open. None
    where answers have no mean: they are no tensors, or of different shapes; or where no such loss is finite.
    """
    mean = torch.zeros(())
    counts: list[int] = []
    for batch in batches:
        out = call(model, batch.inputs)
        if not isinstance(out, torch.Tensor) or out.ndim == 0 or (counts and out.shape[1:] != mean.shape):
            return None
        out = out if out.dtype == torch.float64 else out.float()
        mean = mean.to(out.device) + out.sum(0)
        counts.append(len(out))
    mean = mean / sum(counts)

    def loss(answer: torch.Tensor) -> float:
        answers = (answer.expand(count, *answer.shape).clone() for count in counts)
        pairs = zip(answers, batches, strict=True)
        losses = [float(loss_of(loss_fn, out, batch.target)) * batch.size for out, batch in pairs]
        return sum(losses) / sum(batch.size for batch in batches)

    guesses = [guess for guess in (loss(mean), loss(torch.zeros_like(mean))) if math.isfinite(guess)]
    return min(guesses, default=None)


@torch.no_grad()
def renew_statistics(model: nn.Module, batches: Sequence[Batch]) -> None:
    """Replace batch-norm statistics by those of `batches`, in place; all else runs in evaluation mode.

    Every batch counts the same, so a last one of no more than half their size is left out: it would weigh too much, and
    one image may have no variance at all.
    """
    norms = statistics_of(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
        norm.train()
    for batch in batches:
        if 2 * batch.size > batches[0].size:
            call(model, batch.inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def short_tuning(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    steps: int,
    lr: float,
) -> None:
    """Take `steps` of SGD with momentum over `batches` in order, in place; batch-norm statistics stay.

    The order is fixed, so that candidates differ by what was cut and by nothing else.
    """
    model.eval()
    parameters = [parameter.requires_grad_(True) for parameter in model.parameters() if parameter.is_floating_point()]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)
    with torch.enable_grad():
        for step in range(steps):
            batch = batches[step % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            loss_fn(call(model, batch.inputs), batch.target).backward()
            optimizer.step()
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = None
