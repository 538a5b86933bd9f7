"""Networks by name: one that is known, a Python file's, or that in a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune import models
from lcprune.batches import Batch, call, check_weights, loss_of, shape_of, shape_text, to_device
from lcprune.copies import ORIGIN
from lcprune.errors import DataError, LcpruneError, ModelError, first_line
from lcprune.files import write_json
from lcprune.graph import ChannelGraph, trace
from lcprune.limit import Limit, format_count
from lcprune.plan import Plan
from lcprune.repairs.distance import scores_classes
from lcprune.runs import NETWORK, PLAN, WEIGHTS, RunFolder
from lcprune.score import ACCURACY, LOSS
from lcprune.select import Limits, Ranking
from lcprune.storage import is_folder, load, network_of
from lcprune.task import width_of

if TYPE_CHECKING:
    from lcprune.data import AnyData, OwnData

logger = logging.getLogger("lcprune")


@dataclass(frozen=True, eq=False)
class Network:
    """A network to work on.

    Attributes:
        name: what it was asked for by.
        model: in evaluation mode, on the device asked for.
        example: one input, likewise: a tensor, a tuple of them, or a dict of keyword arguments.
        plan: what was kept, if it comes from a folder with a pruned network.
        run: the folder it comes from, if it does.
    """

    name: str
    model: nn.Module
    example: Any
    plan: Plan | None = None
    run: RunFolder | None = None

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    def describe(self, run: RunFolder) -> None:
        """Write into a new run folder how to build the network, where no plan in that folder says it."""
        if run.writes and self.plan is None:
            known = {**getattr(self.model, ORIGIN, {}), "input_shape": shape_of(self.example)}
            write_json(run.file(NETWORK), known)


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
        name: a network's name, `file.py:factory`, or a folder with a network.
        weights: file of weights, folder with a network (pruned or not), or "pretrained".
        num_classes: outputs; those of `dataset` or the network's own if None.
        shape: of one input; that of `dataset` or the network's own if None.
        seed: of weights that no file brings: the same command builds the same network.

    Raises:
        ModelError: there is no such network, or it cannot take such inputs.
    """
    run, plan, known = None, None, {}
    if Path(name).is_dir():
        run = RunFolder.read(name)
        name, known = str(run.path), _network_in(run, weights)
        model, plan = load(run.path), _plan(run.path, known)
        while shape is None and "input_shape" not in known and is_folder(known.get("model")):
            known = network_of(Path(known["model"]))  # a network that was pruned twice
        shape = shape or known.get("input_shape") or models.input_shape(known["model"])
    elif ":" not in name and len(Path(name).parts) > 1:
        raise ModelError(f"there is no run folder {name}")
    else:
        if weights is not None and Path(weights).is_dir():
            run = RunFolder.read(weights)
            weights, known = None, network_of(run.path)
        num_classes = num_classes or known.get("num_classes") or (None if dataset is None else dataset.num_classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = models.build(name, num_classes=num_classes, weights=weights)
        if run is not None:
            plan = _plan(run.path, {**known, **getattr(model, ORIGIN)})
            model = load(run.path, model)
        shape = shape or (known.get("input_shape") if dataset is None else dataset.input_shape)
    example = to_device(models.example_input(name, shape=shape), device)
    network = Network(name, model.to(device).eval(), example, plan, run)
    _answer(network, example)
    if dataset is not None:
        _check_data(network, dataset)
    return network


def trace_network(network: Network, ignore: Sequence[str] = ()) -> ChannelGraph:
    """Trace a network, but for what must not shrink, and say how long it took."""
    started = time.perf_counter()
    graph = trace(network.model, network.example, ignore=ignore)
    check_weights(network.model, graph.unread)
    seconds = time.perf_counter() - started
    logger.info("traced %s: %d groups in %.1f s", network.name, len(graph.groups), seconds)
    return graph


def check_reachable(
    graph: ChannelGraph, macs: Sequence[Limit], params: Limit | None, min_keep: float, multiple_of: int | None
) -> None:
    """Refuse limits that no choice of units can meet, before a folder is made or an hour is spent.

    A limit that the whole network meets is no error; it is said that nothing has to go.

    Raises:
        BudgetError: with the smallest that can be reached.
    """
    scores = [np.zeros(size) for size in graph.cost.sizes]
    ranking = Ranking(scores, graph.cost, min_keep, width_of(graph, multiple_of))
    for limits in [Limits(macs=limit, params=params) for limit in macs] or [Limits(params=params)]:
        if limits:
            ranking.select(limits)
    for name, most, whole in [*(("macs", limit, graph.macs) for limit in macs), ("params", params, graph.params)]:
        if most is not None and most.of(whole) >= whole:
            logger.warning("%s=%s is no limit here: the whole network has %s", name, most, format_count(whole))


def _network_in(run: RunFolder, weights: str | None) -> dict[str, Any]:
    """What a folder says of the network that it must hold."""
    if weights is not None:
        raise ModelError(f"{run.path} has weights of its own: leave out weights={weights}")
    if not run.file(WEIGHTS).is_file():
        inside = sorted(path.parent for path in run.path.glob(f"networks/*/{WEIGHTS}"))
        hint = f"choose one of its networks: {', '.join(map(str, inside))}" if inside else "did the run finish?"
        raise ModelError(f"{run.path} holds no network ({WEIGHTS}); {hint}")
    return network_of(run.path)


def _plan(folder: Path, known: Mapping[str, Any]) -> Plan | None:
    """The plan in a folder; it says how to build its network, wherever that was found out."""
    return Plan.load(folder / PLAN).with_meta(network=dict(known)) if (folder / PLAN).is_file() else None


def _check_data(network: Network, dataset: AnyData) -> None:
    """Find out in a second that the network cannot take the data's images, or has no output for some of its classes."""
    if dataset.num_classes is None:
        _check_task(network, dataset)
        return
    answer = _answer(network, torch.zeros(1, *dataset.input_shape, device=network.device))
    if isinstance(answer, Tensor) and answer.ndim == 2 and answer.shape[1] < dataset.num_classes:
        raise ModelError(
            f"{network.name} has {answer.shape[1]} outputs and {dataset.name} has {dataset.num_classes} classes: "
            "choose other data, or a network with as many outputs (num_classes)"
        )


def gives_scores(network: Network, dataset: AnyData) -> bool:
    """Whether the network gives one row of scores per image."""
    return scores_classes(_answer(network, torch.zeros(1, *dataset.input_shape, device=network.device)), 1)


def _check_task(network: Network, dataset: OwnData) -> None:
    """Find out as soon that the loss or the score does not fit what the network gives."""
    first = Batch(to_device(dataset.first.inputs, network.device), to_device(dataset.first.target, network.device), 0)
    answer = _answer(network, first.inputs)
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


def _answer(network: Network, example: Any) -> Any:
    """Find out in a second, not after an hour, that the network cannot take such inputs."""
    try:
        with torch.no_grad():
            return call(network.model, example)
    except LcpruneError:
        raise
    except Exception as error:
        shape = shape_text(shape_of(example))
        raise ModelError(
            f"{network.name} cannot take inputs of {shape}: {first_line(error)}\n"
            "choose other data, or say another input_shape"
        ) from None
