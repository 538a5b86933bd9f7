"""Networks by name: one that is known, a Python file's, or that of a run folder."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune import models
from lcprune.batches import Batch, call, loss_of, shape_of, shape_text, to_device
from lcprune.errors import DataError, LcpruneError, ModelError, first_line
from lcprune.files import write_json
from lcprune.graph import ChannelGraph, trace
from lcprune.plan import Plan
from lcprune.runs import RunFolder
from lcprune.score import ACCURACY, LOSS
from lcprune.storage import load

if TYPE_CHECKING:
    from lcprune.data import AnyData, OwnData

logger = logging.getLogger("lcprune")

PLAN, WEIGHTS, NETWORK = "plan.json", "model.safetensors", "network.json"


@dataclass(frozen=True, eq=False)
class Network:
    """A network to work on.

    Attributes:
        name: what it was asked for by.
        model: in evaluation mode, on the device asked for.
        example: one input, likewise: a tensor, a tuple of them, or a dict of keyword arguments.
        plan: what was kept, if it comes from a folder with a pruned network.
        run: the folder it comes from, if it does.
        built: how to build the network that `plan` (or the weights alone) applies to, as plain JSON: its model,
            num_classes and input_shape.
    """

    name: str
    model: nn.Module
    example: Any
    plan: Any = None
    run: RunFolder | None = None
    built: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    def describe(self, run: RunFolder, pruned: bool = False) -> None:
        """Write into a new run folder how to build the network behind it.

        Args:
            pruned: whether the folder's plan is one of this network, rather than the plan it came with.
        """
        built = self.built
        if pruned and self.plan is not None and self.run is not None:
            built = {"model": str(self.run.path.resolve())}
        if run.writes:
            write_json(run.file(NETWORK), dict(built))


def open_network(
    name: str,
    weights: str | None = None,
    num_classes: int | None = None,
    shape: Any = None,
    dataset: AnyData | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Network:
    """The network called `name`.

    Args:
        name: a network's name, `file.py:factory`, or a run folder.
        weights: file of weights, or "pretrained".
        num_classes: outputs; those of `dataset` or the network's own if None.
        shape: of one input; that of `dataset` or the network's own if None.
        seed: of weights that no file brings: the same command builds the same network.

    Raises:
        ModelError: there is no such network, or it cannot take such inputs.
    """
    if Path(name).is_dir():
        network = _from_folder(RunFolder.open(name), shape, device)
        _check_data(network, dataset)
        return network
    if num_classes is None and dataset is not None:
        num_classes = dataset.num_classes
    if ":" not in name and len(Path(name).parts) > 1:
        raise ModelError(f"there is no run folder {name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.build(name, num_classes=num_classes, weights=weights)
    if shape is None:
        shape = dataset.input_shape if dataset is not None else models.input_shape(name)
    example = models.example_input(name, shape=shape)
    model = model.to(device).eval()
    example = to_device(example, device)
    _try(model, example, name)
    built = {"model": _absolute(name), "num_classes": num_classes, "input_shape": shape_of(example)}
    network = Network(name, model, example, built=built)
    _check_data(network, dataset)
    return network


def trace_network(network: Network) -> ChannelGraph:
    """Trace a network, and say how long it took."""
    started = time.perf_counter()
    graph = trace(network.model, network.example)
    seconds = time.perf_counter() - started
    logger.info("traced %s: %d groups in %.1f s", network.name, len(graph.groups), seconds)
    return graph


def _absolute(name: str) -> str:
    path, colon, function = name.rpartition(":")
    return f"{Path(path).resolve()}:{function}" if colon and path.endswith(".py") else name


def _from_folder(run: RunFolder, shape: Any, device: torch.device | str) -> Network:
    """A trained or pruned network from its folder: the network behind it is built first."""
    if not run.file(WEIGHTS).is_file():
        raise ModelError(f"{run.path} holds no network ({WEIGHTS}); did the run finish?")
    try:
        built = json.loads(run.file(NETWORK).read_text(encoding="utf-8"))
        spec = str(built["model"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(f"{run.path} does not say which network it holds ({NETWORK} is missing or damaged)") from None
    own = built.get("input_shape") if shape is None else shape
    base = open_network(spec, num_classes=built.get("num_classes"), shape=own)
    if run.file(PLAN).is_file():
        model = load(run.path, base.model)
        plan = Plan.load(run.file(PLAN))
    else:
        model, plan = base.model, None
        models.load_weights(model, run.file(WEIGHTS))
    return Network(str(run.path), model.to(device).eval(), to_device(base.example, device), plan, run, built)


def _check_data(network: Network, dataset: AnyData | None) -> None:
    """Find out in a second that the network cannot take the data's images, or has no output for some of its classes."""
    if dataset is None:
        return
    if dataset.num_classes is None:
        _check_task(network, dataset)
        return
    example = torch.zeros(1, *dataset.input_shape, device=network.device)
    answer = _try(network.model, example, network.name)
    if isinstance(answer, Tensor) and answer.ndim == 2 and answer.shape[1] < dataset.num_classes:
        raise ModelError(
            f"{network.name} has {answer.shape[1]} outputs and {dataset.name} has {dataset.num_classes} classes: "
            "choose other data, or a network with as many outputs (num_classes)"
        )


def _check_task(network: Network, dataset: OwnData) -> None:
    """Find out as soon that the loss or the score does not fit what the network gives."""
    first = Batch(to_device(dataset.first.inputs, network.device), to_device(dataset.first.target, network.device), 0)
    answer = _try(network.model, first.inputs, network.name)
    if not dataset.labelled:
        return
    what = "the loss" if dataset.loss_fn is not None else "cross-entropy, the loss unless one is named,"
    try:
        loss_of(dataset.loss_fn or nn.functional.cross_entropy, answer, first.target)
        if dataset.compared_by is ACCURACY and pytree.tree_any(lambda leaf: leaf.is_floating_point(), first.target):
            raise ValueError("targets are no class numbers")
        what = f"the score {dataset.compared_by.name!r}"
        if dataset.compared_by is not LOSS:
            meter = dataset.compared_by.meter()
            meter.update(answer, first.target)
            float(meter.compute())
    except LcpruneError:
        raise
    except Exception as error:
        shapes = f"outputs {_shapes(answer)}, targets {_shapes(first.target)}"
        raise DataError(
            f"{what} cannot be computed for {network.name} on {dataset.name}: {type(error).__name__}: "
            f"{first_line(error)} ({shapes})\nname another loss or score: file.py:function"
        ) from error


def _shapes(value: Any) -> str:
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return " and ".join(f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}" for leaf in leaves)


def _try(model: nn.Module, example: Any, name: str) -> Any:
    """Find out in a second, not after an hour, that the network cannot take such inputs."""
    try:
        with torch.no_grad():
            return call(model, example)
    except LcpruneError:
        raise
    except Exception as error:
        shape = shape_text(shape_of(example))
        raise ModelError(
            f"{name} cannot take inputs of {shape}: {first_line(error)}\nchoose other data, or say another input_shape"
        ) from None
