"""Checkpoints: one safetensors file with everything a run needs to go on, renamed into place.

Order, augmentation and dropout are functions of (seed, epoch, step), so weights, statistics, momentum and the
place in the run are all there is to keep. One file means that a checkpoint is either the old or the new one,
whenever the process is killed; safetensors means that reading it runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lcprune.errors import TuneError
from lcprune.files import atomic_write

_FORMAT = "lcprune-checkpoint-1"


@dataclass
class Place:
    """Where a run is.

    Attributes:
        epoch: the epoch under way, counted from 0; equal to the number of epochs when finished.
        step: steps of it that are done.
        history: one record per finished epoch.
        seconds: training time so far.
    """

    epoch: int = 0
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def save(path: Path, model: nn.Module, extra: Mapping[str, Tensor], place: Place, identity: Mapping[str, Any]) -> None:
    """Write a checkpoint: weights, momentum and what else is kept, and what must be the same when the run goes on."""
    state = json.dumps({**vars(place), "identity": identity})
    _write(path, _live(model, extra), {"format": _FORMAT, "state": state})


def load(path: Path, model: nn.Module, extra: Mapping[str, Tensor], identity: Mapping[str, Any]) -> Place:
    """Read a checkpoint into live tensors, in place, so that a captured graph would still find them."""
    with _opened(path) as (stored, state):
        _compare(path, state.pop("identity"), json.loads(json.dumps(identity)))
        live = _live(model, extra)
        absent = sorted(set(live) ^ set(stored.keys()))
        if absent:
            raise TuneError(f"{path} does not belong to this network: {', '.join(absent[:5])} are in one only")
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(stored.get_tensor(name))
        return Place(**state)


def place_in(path: Path) -> tuple[int, int]:
    """(epoch, step) that a checkpoint holds; (0, 0) where there is none."""
    if not path.exists():
        return 0, 0
    with _opened(path) as (_, state):
        return state["epoch"], state["step"]


def save_weights(path: Path, model: nn.Module, metadata: Mapping[str, str] | None = None) -> None:
    """Write a network's weights as safetensors, atomically."""
    _write(path, model.state_dict(), dict(metadata or {}))


def _live(model: nn.Module, extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {**weights, **{f"extra.{name}": tensor for name, tensor in extra.items()}}


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    # Safetensors keeps neither strides nor shared storage.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(plain, temporary, metadata=metadata)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A checkpoint's tensors, and what was written beside them."""
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise TuneError(f"{path} is not a checkpoint of lcprune")
            yield stored, json.loads(metadata["state"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise TuneError(f"{path} is damaged: {error}. Remove it to start again.") from error


def _compare(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    different = [
        f"{key} was {saved.get(key)!r} and is {own.get(key)!r}"
        for key in {**saved, **own}
        if saved.get(key) != own.get(key)
    ]
    if different:
        raise TuneError(
            f"{path} belongs to another run: {'; '.join(different[:6])}. Resume with the same settings, or "
            "start in another folder."
        )
