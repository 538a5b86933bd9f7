"""Reading weights into a network, without ever running code from a file.

Safetensors, or a state dict saved by `torch.save` and read with `weights_only=True`; the usual wrappings
(`{"state_dict": ...}`, `DataParallel`'s `module.` prefix, `torch.compile`'s `_orig_mod.`) are taken off, and so is the
attribute under which a trainer, such as a Lightning module, keeps the network.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune.errors import ModelError

logger = logging.getLogger("lcprune")

_WRAPPINGS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights")
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 12


def read_state_dict(path: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a weight file, unwrapped.

    Args:
        path: a `.safetensors` file, a state dict written by `torch.save`, or a state dict.

    Returns:
        Parameter or buffer name -> tensor, on the CPU.
    """
    if isinstance(path, Mapping):
        return _unwrap(path, "the state dict")
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"no weights at {file}: expected a .safetensors file or a saved state dict")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is not a readable safetensors file: {error}") from error
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file} is not a readable state dict: it holds more than tensors, or is damaged, and lcprune "
            "does not run code from weight files. Save the network's state_dict(), e.g. with safetensors."
        ) from error
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    except Exception as error:  # a file of any other kind: what the unpickler makes of its bytes says nothing
        raise ModelError(
            f"{file} is neither a .safetensors file nor a state dict saved by torch.save, or it is damaged"
        ) from error
    return _unwrap(stored, str(file))


def _unwrap(stored: Any, source: str) -> dict[str, Tensor]:
    """Take off what trainers put around a state dict: `{"state_dict": ...}`, prefixes of names."""
    while isinstance(stored, Mapping) and not any(isinstance(value, Tensor) for value in stored.values()):
        inner = next((stored[key] for key in _WRAPPINGS if isinstance(stored.get(key), Mapping)), None)
        if inner is None:
            break
        stored = inner
    if not isinstance(stored, Mapping):
        raise ModelError(f"{source} holds a {type(stored).__name__}, not a state dict")
    tensors = {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ModelError(f"{source} holds no tensors; its keys are {list(stored)[:_SHOWN]}")
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in tensors)), ""):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def load_weights(
    model: nn.Module,
    weights: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    new_head: bool = False,
) -> None:
    """Copy weights into `model`; every name and shape must fit.

    Args:
        model: the network, changed in place.
        weights: a file or a state dict.
        new_head: leave the last linear layer as it is when the file's has another shape: for a network that
            moves to data with other classes.
    """
    source, tensors = "the state dict" if isinstance(weights, Mapping) else str(weights), read_state_dict(weights)
    own = model.state_dict()
    # Old checkpoints lack the batch counter, which plays no part in what the network computes.
    needed = [name for name in own if not name.endswith("num_batches_tracked")]
    tensors = _inside(tensors, needed, source)
    if new_head:
        layer = head_name(model)
        for name in (f"{layer}.weight", f"{layer}.bias"):
            if name in own and name in tensors and own[name].shape != tensors[name].shape:
                tensors[name] = own[name]
    problems = [f"missing: {name} {tuple(own[name].shape)}" for name in needed if name not in tensors]
    problems += [f"not in the network: {name} {tuple(tensors[name].shape)}" for name in tensors if name not in own]
    problems += [
        f"shape: {name} is {tuple(own[name].shape)} in the network, {tuple(tensors[name].shape)} in the file"
        for name in own
        if name in tensors and own[name].shape != tensors[name].shape
    ]
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ModelError(
            f"{source} does not fit {type(model).__name__} ({len(problems)} differences):\n  "
            + "\n  ".join(problems[:_SHOWN])
            + more
            + _hint(model, problems, tensors)
        )
    model.load_state_dict(tensors, strict=False)


def _inside(tensors: dict[str, Tensor], needed: list[str], source: str) -> dict[str, Tensor]:
    """The network's weights out of those of a trainer that holds it as an attribute (`model.`); else all."""
    if not needed or all(name in tensors for name in needed):
        return tensors
    found = [name.removesuffix(needed[0]) for name in tensors if name.endswith(f".{needed[0]}")]
    prefixes = [prefix for prefix in found if all(prefix + name in tensors for name in needed)]
    if len(prefixes) > 1:
        raise ModelError(
            f"{source} holds the network {len(prefixes)} times, under {' and '.join(map(repr, prefixes))}: save the "
            "weights of the one that you mean"
        )
    if not prefixes:
        return tensors
    (prefix,) = prefixes
    left = [name for name in tensors if not name.startswith(prefix)]
    if left:
        logger.info("%s: weights under %r are taken, %d others left, such as %s", source, prefix, len(left), left[0])
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _hint(model: nn.Module, problems: list[str], tensors: Mapping[str, Tensor]) -> str:
    head = head_name(model)
    if all(problem.startswith(f"shape: {head}.") for problem in problems):
        return "\nOnly the classifier differs: pass new_head=True to start it afresh."
    parts = {name.partition(".")[0] for name in tensors}
    if len(parts) == 1 and not any(name.partition(".")[0] in parts for name in model.state_dict()):
        return f"\nAll names in the file begin with '{parts.pop()}.', and without it they do not fit either."
    return ""


def head_name(model: nn.Module) -> str:
    """Name of the last linear layer (or, without one, the last convolution): the classifier."""
    for kind in (nn.Linear, nn.Conv2d):
        names = [name for name, module in model.named_modules() if isinstance(module, kind)]
        if names:
            return names[-1]
    raise ModelError(f"{type(model).__name__} has no linear layer or convolution that could be its classifier")


def from_centred(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights for our ResNets from weights of ones whose shortcuts put the zero channels on both sides.

    Several well-known trainings of these networks pad half of the new channels before the existing ones and half
    after. Names and shapes are the same, so such a file loads without complaint and computes nonsense. The two
    networks differ by an order of the channels of each stage, which is applied to the weights here.

    Args:
        state: state dict of a ResNet-20 ... 110 with names as ours (`layer2.0.conv1.weight` ...).

    Returns:
        The same network with its channels in our order.
    """
    weights = _unwrap(state, "the state dict")
    try:
        orders = {0: torch.arange(len(weights["bn1.weight"]))}
        for stage in (1, 2, 3):
            # Their channel at each of our places: the existing ones first, then the zeros of either side.
            places = torch.arange(len(weights[f"layer{stage}.0.bn2.weight"]))
            existing = (len(places) - len(orders[stage - 1])) // 2 + orders[stage - 1]
            orders[stage] = torch.cat([existing, places[~torch.isin(places, existing)]])
        converted = dict(weights)
        for name, tensor in weights.items():
            layer = name.split(".")
            if name == "linear.weight":
                converted[name] = tensor[:, orders[3]]
            elif name.startswith("layer") and tensor.dim():
                stage = int(layer[0].removeprefix("layer"))
                if layer[2] in ("conv2", "bn2"):
                    converted[name] = tensor[orders[stage]]
                elif layer[2] == "conv1":  # that of the first block reads the stage before
                    converted[name] = tensor[:, orders[stage - 1 if layer[1] == "0" else stage]]
    except KeyError as error:
        raise ModelError(f"not the weights of a CIFAR ResNet: {error} is missing") from None
    return converted
