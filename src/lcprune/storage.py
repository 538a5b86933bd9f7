"""Saving and loading pruned networks: a plan beside safetensors, no pickle."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lcprune.copies import named_tensors, unwrap
from lcprune.errors import PlanError
from lcprune.files import atomic_write
from lcprune.plan import Plan

PLAN, WEIGHTS = "plan.json", "model.safetensors"


def save(folder: str | os.PathLike[str], model: nn.Module, plan: Plan) -> None:
    """Write a pruned network: `plan.json` and `model.safetensors`.

    Args:
        folder: made if it does not exist.
        model: the pruned network, tuned or not.
        plan: the plan that made it.
    """
    inner = unwrap(model)
    expected = plan.pruned_shapes()
    for name, tensor in named_tensors(inner):
        if tuple(tensor.shape) != expected.get(name):
            raise PlanError(
                f"the network is not what the plan makes: {name} has shape {list(tensor.shape)}, "
                f"the plan makes {list(expected[name]) if name in expected else 'no such weight'}; "
                "save plan.apply(model)"
            )
    tensors = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in named_tensors(inner)}
    with atomic_write(Path(folder) / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    # The plan goes last: a folder with a plan is a whole one.
    plan.save(Path(folder) / PLAN)


def load(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Build a saved pruned network again.

    Args:
        folder: what `save` wrote.
        model: a fresh network of the original, unpruned architecture.

    Returns:
        A new network with the saved weights, on the device of `model`.

    Raises:
        PlanError: if the folder is incomplete or belongs to another network.
    """
    plan = Plan.load(Path(folder) / PLAN)
    pruned = plan.apply(model)
    path = Path(folder) / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    fill(pruned, tensors, str(path))
    return pruned


def fill(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Copy tensors into a network whose parameters and buffers have exactly these names and shapes."""
    own = dict(named_tensors(model))
    problems = [f"{name} is missing" for name in own if name not in tensors]
    problems += [f"{name} is not in the network" for name in tensors if name not in own]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, the network {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise PlanError(f"{source} does not fit: {'; '.join(problems[:3])}{more}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
