"""Networks in folders: saving and loading them, a plan beside safetensors, no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lcprune import models
from lcprune.copies import ORIGIN, copy_of, named_tensors, unwrap
from lcprune.errors import ModelError, PlanError
from lcprune.files import atomic_write
from lcprune.plan import Plan
from lcprune.runs import NETWORK, PLAN, WEIGHTS


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


def load(
    folder: str | os.PathLike[str] | Mapping[str, Tensor],
    model: nn.Module | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
) -> nn.Module:
    """Build a saved network again.

    Args:
        folder: with a network: what `save`, a run or `lcprune train` wrote. Or weights alone: a safetensors file, a
            state dict saved by `torch.save`, or a state dict.
        model: a fresh network of the original, unpruned architecture. None builds what the folder names, if it does.
        plan: of a pruned network, or its file; None takes the `plan.json` beside the weights.

    Returns:
        A new network with the saved weights, on the device of `model`.

    Raises:
        PlanError: the folder is incomplete, or belongs to another network.
        ModelError: the folder does not say which network it holds.
    """
    where, weights = None, folder
    if not isinstance(folder, Mapping):
        path = Path(folder)
        where, weights = (path, path / WEIGHTS) if path.is_dir() else (path.parent, path)
        if not Path(weights).is_file():
            raise PlanError(f"{path} holds no network: there is no {weights}")
    if plan is None and where is not None and (where / PLAN).is_file():
        plan = where / PLAN
    own = plan if plan is None or isinstance(plan, Plan) else Plan.load(plan)
    known = network_of(where, own)
    if model is None:
        model = _build(known, str(where or "the state dict"))
    if own is None:
        smaller = copy_of(unwrap(model))
        models.load_weights(smaller, weights)
        return smaller
    smaller = own.apply(model)
    try:
        tensors = models.read_state_dict(weights)
    except ModelError as error:
        raise PlanError(str(error)) from error
    _fill(smaller, tensors, "the state dict" if isinstance(weights, Mapping) else str(weights))
    if where is not None and weights == where / WEIGHTS:
        whole, here = getattr(model, ORIGIN, {}), str(where.resolve())
        setattr(smaller, ORIGIN, {"model": here} if "model" in known else {**whole, "weights": here})
    return smaller


def network_of(folder: Path | None, plan: Plan | None = None) -> dict[str, Any]:
    """What a folder says of the network that its plan, or its weights alone, applies to, e.g. model, input_shape.

    Raises:
        ModelError: `network.json` is damaged.
    """
    if folder is not None and (folder / NETWORK).is_file():
        try:
            return dict(json.loads((folder / NETWORK).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{folder / NETWORK} is damaged: {error}") from None
    if plan is None and folder is not None and (folder / PLAN).is_file():
        plan = Plan.load(folder / PLAN)
    return {} if plan is None else dict(plan.meta.get("network", {}))


def _build(known: Mapping[str, Any], where: str) -> nn.Module:
    """The network behind a folder, whole."""
    name = known.get("model")
    if name is None:
        made = f", a {known['class']}" if "class" in known else ""
        raise ModelError(
            f"{where} does not say how to build the network{made}: give it, lcprune.load(folder, model), or on the "
            f"command line name it and the folder as its weights: lcprune COMMAND MODEL --weights {where}"
        )
    if is_folder(name):
        model = load(name)
    elif Path(name).is_absolute() and ":" not in Path(name).name:
        raise ModelError(f"{where} was cut from the network in {name}, which is there no more: give the network")
    else:
        model = models.build(name, num_classes=known.get("num_classes"))
    return load(known["weights"], model) if "weights" in known else model


def is_folder(name: Any) -> bool:
    """Whether what a plan calls its network is a folder with one."""
    return Path(str(name)).is_absolute() and Path(str(name)).is_dir()


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into a network whose parameters and buffers have these names and shapes."""
    own, needed = dict(named_tensors(model)), model.state_dict().keys()
    counter = "num_batches_tracked"  # what old checkpoints lack
    problems = [f"{n} is missing" for n in own if n in needed and n not in tensors and not n.endswith(counter)]
    problems += [f"{name} is not in the network" for name in tensors if name not in own and name not in needed]
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
            if name in tensors:
                tensor.copy_(tensors[name])
