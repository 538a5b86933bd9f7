"""Whether a network and its data fit together, found out before anything is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from lcprune.batches.draw import collate
from lcprune.batches.inputs import call
from lcprune.copies import copy_to_run
from lcprune.errors import DataError, ModelError, first_line

_MORE = 4  # images: a network is run on batches of several sizes
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
    """Refuse images that the network cannot take and, `judged` by cross-entropy, targets that it cannot."""
    whole = copy_to_run(model)
    device = next((parameter.device for parameter in whole.parameters()), torch.device("cpu"))
    batch = collate(samples[:2], 2, device)[0]
    try:
        with torch.no_grad():
            output = call(whole, batch.inputs)
    except Exception as error:
        shapes = ", ".join(str(list(leaf.shape[1:])) for leaf in pytree.tree_leaves(batch.inputs))
        raise DataError(
            f"the network cannot take the data's inputs, of shape {shapes} each: {first_line(error)}. Give batches "
            "like the example inputs"
        ) from error
    if len(samples) >= _MORE:
        try:
            with torch.no_grad():
                call(whole, collate(samples[:_MORE], _MORE, device)[0].inputs)
        except Exception as error:
            raise DataError(
                f"the network takes {batch.size} images at once, but not {_MORE}: {first_line(error)}. Let it take any "
                "number (torch.export.export has dynamic_shapes for this)"
            ) from error
    if judged and isinstance(output, Tensor) and isinstance(batch.target, Tensor):
        _check_targets(output.float().cpu(), batch.target.cpu(), [target for _, target in samples])


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
