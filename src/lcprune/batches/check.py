"""Whether a network and its data fit together, found out before anything is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from lcprune.batches.draw import alone, collate
from lcprune.batches.inputs import call
from lcprune.copies import copy_to_run
from lcprune.errors import DataError, ModelError, first_line

_FEW, _MORE = 2, 4  # images: a network is run on batches of several sizes
_IGNORED = -100  # the class that cross-entropy leaves out


def check_weights(model: nn.Module, unread: Sequence[str] = ()) -> None:
    """Refuse a network whose weights are not numbers; the parameters `unread` play no part."""
    statistics = [(n, b) for n, b in model.named_buffers() if n.rpartition(".")[2].startswith("running_")]
    for name, tensor in (*model.named_parameters(), *statistics):
        if name not in unread and not tensor.is_meta and bool(tensor.detach().isnan().any()):
            raise ModelError(
                f"{name} holds NaN, so the network computes nothing: train it again, or load other weights"
            )


def check_samples(model: nn.Module, samples: Sequence[tuple[Any, Any]], judged: bool = False) -> None:
    """Refuse networks without numbers, images that they cannot take and, `judged` by cross-entropy, such targets."""
    if missing := [name for name, tensor in model.named_parameters() if tensor.is_meta]:
        raise ModelError(f"{missing[0]} has no numbers (it is on the meta device): load weights, or give no data")
    whole = copy_to_run(model)
    device = next((parameter.device for parameter in whole.parameters()), torch.device("cpu"))
    shown = samples if judged else alone(samples)
    few, more = (collate(shown[:count], count, device)[0] for count in (_FEW, _MORE))
    shapes = ", ".join(str(list(leaf.shape[1:])) for leaf in pytree.tree_leaves(few.inputs))
    refused = f"cannot take the data's inputs, of shape {shapes} each"
    output = _answer(whole, few.inputs, refused, "Give batches like the example inputs")
    if more.size == _MORE:
        taken = f"takes {few.size} images at once, but not {more.size}"
        _answer(whole, more.inputs, taken, "Let it take any number (torch.export.export has dynamic_shapes for this)")
    if judged and isinstance(output, Tensor) and isinstance(few.target, Tensor):
        _check_targets(output.float().cpu(), few.target.cpu(), [target for _, target in samples])


def _answer(whole: nn.Module, inputs: Any, wrong: str, way_out: str) -> Any:
    try:
        with torch.no_grad():
            return call(whole, inputs)
    except Exception as error:
        raise DataError(f"the network {wrong}: {first_line(error)}. {way_out}") from error


def _check_targets(output: Tensor, first: Tensor, targets: Sequence[Any]) -> None:
    classes = output.shape[1] if output.ndim > 1 else 0
    if not first.is_floating_point() and first.ndim == output.ndim - 1:
        for place, target in enumerate(targets):
            label = torch.as_tensor(target)
            wrong = label[((label < 0) | (label >= classes)) & (label != _IGNORED)]
            if len(wrong):
                raise DataError(
                    f"label {int(wrong[0])} (image {place} of {len(targets)} drawn) is none of the {classes} classes "
                    f"of the network, 0 to {classes - 1}: look at the labels, or prune without them (inputs alone)"
                )
    try:
        cross_entropy(output, first)
    except Exception as error:
        raise DataError(
            f"cross-entropy cannot compare outputs of {list(output.shape)} with targets of {list(first.shape)} "
            f"({str(first.dtype).removeprefix('torch.')}): {first_line(error)}. Give classes as int64, a loss with "
            "lcprune.Evaluation(data, loss_fn=...), or inputs alone"
        ) from error
