"""From a model to its `ChannelGraph`."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_iter

from lcprune import bf16
from lcprune.batches import Inputs, arguments
from lcprune.copies import named_tensors, unwrap
from lcprune.cost import Axis, Cost, LayerCost, Term
from lcprune.errors import TraceError, first_line
from lcprune.graph.atoms import Atoms
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.graph.discover import Discover
from lcprune.graph.label_pass import LabelPass
from lcprune.graph.outputs import signature
from lcprune.graph.replay import on_shapes
from lcprune.graph.resolve import axis_roles
from lcprune.graph.skeleton import inputs_to, set_mode, skeleton, untouched
from lcprune.graph.structure import AttributeTie, Structure
from lcprune.graph.trial import Trials
from lcprune.graph.values import AsOnMeta, Values

logger = logging.getLogger("lcprune")


def trace(model: nn.Module, example_inputs: Any, ignore: Iterable[str | nn.Module] = ()) -> ChannelGraph:
    """Find out how the channels of a network depend on one another.

    Args:
        model: any network that runs on `example_inputs`; it is not changed. `DataParallel` and `torch.compile`
            wrappers are looked through.
        example_inputs: a tensor, a tuple of the arguments of `forward`, or a dict of keyword arguments. Costs are for
            one sample of it.
        ignore: modules, or names or patterns (`"head"`, `"layer4.*"`) of modules and weights, that must not shrink.

    Returns:
        The graph: groups of units that can go, costs, and what is frozen and why.

    Raises:
        TraceError: if the network cannot be run or has nothing to prune.
    """
    if not isinstance(model, nn.Module):
        raise TraceError(f"a torch.nn.Module is needed, not {type(model).__name__}")
    inner = unwrap(model)
    if (first := next(inner.parameters(), None)) is not None:
        bf16.refuse_network(inner, first.device, TraceError)
    if isinstance(inner, torch.jit.ScriptModule):
        raise TraceError("a scripted network cannot be cut: pass the Python module that it was made from")
    if lazy := [name for name, tensor in named_tensors(inner) if nn.parameter.is_lazy(tensor)]:
        raise TraceError(f"{lazy[0]} has no size yet: run the network once, on its example inputs, before it is traced")
    args = arguments(example_inputs)
    if not any(isinstance(value, Tensor) for value in tree_iter(args)):
        raise TraceError("example_inputs holds no tensor; give the arguments of forward(): a tensor, a tuple or a dict")
    with untouched(inner):
        return _trace(inner, args, ignore)


def _trace(inner: nn.Module, args: Inputs, ignore: Iterable[str | nn.Module]) -> ChannelGraph:
    structure = _structure(inner, args)
    if not structure.discovered.contractions:
        raise TraceError(
            "no convolution or linear layer with a weight was run; quantised networks keep packed weights that "
            "cannot be cut: prune first, quantise afterwards"
        )
    patterns = _patterns(inner, ignore)
    ignored = _ignored(structure.discovered, patterns)
    structure.ties = _plain_ties(structure)
    Trials(structure, [*ignored, *_projected(structure)]).run()
    structure.ties = [
        tie for tie in structure.ties if (structure.units.group_of[structure.units.position(tie.atoms)] >= 0).any()
    ]
    return ChannelGraph(
        model=inner,
        example_inputs=args,
        groups=structure.units.groups,
        cost=_cost(structure, args),
        frozen=_frozen(structure),
        mixing=_mixing(structure),
        norms=structure.discovered.norms(),
        unread=tuple(structure.discovered.unread.values()),
        ignore=patterns,
        structure=structure,
    )


def _structure(model: nn.Module, args: Inputs) -> Structure:
    """Run on shapes alone; if the code looks at values, told what it sees on the CPU, or else on data throughout."""
    try:
        return _discover(skeleton(model), inputs_to(args, "meta"))
    except TraceError:
        raise
    except Exception as on_shapes:
        try:
            values = _values(skeleton(model, real=True), inputs_to(args, "cpu"))
            try:
                return _discover(skeleton(model), inputs_to(args, "meta"), values)
            except Exception as told:
                logger.info("every trial runs on data, which takes longer (%s)", str(told).split("\n")[0])
            return _discover(skeleton(model, real=True), inputs_to(args, "cpu"))
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(
                f"{type(model).__name__} cannot be run on the example inputs: {error} "
                f"(on shapes alone: {on_shapes}); check their number, shape and dtype"
            ) from error


def _values(bones: nn.Module, args: Inputs) -> Values:
    """What the network reads out of its data, in evaluation mode and, where that may matter, in training mode."""
    values = Values()
    run = LabelPass(bones, {}, values)
    with AsOnMeta():
        run.forward(args)
        if run.unread:
            set_mode(bones, training=True)
            with contextlib.suppress(Exception):  # training may need targets
                run.forward(args)
    values.recording = False
    return values


def _discover(bones: nn.Module, args: Inputs, values: Values | None = None) -> Structure:
    """Run once in evaluation mode, and in training mode too where that reads weights which evaluation does not."""
    run = Discover(bones, values)
    outputs = {False: signature(run.forward(args))}
    if run.unread:
        trained = Discover(bones, values)
        set_mode(bones, training=True)
        try:
            trained.forward(args)
        except Exception as error:  # training may need targets
            if values is None and on_shapes(bones) and "meta" in str(error):
                raise  # it looks at values
            weight = next(iter(run.unread.values()))
            logger.warning(
                f"{weight}, first of {len(run.unread)} weights that evaluation does not read, stays as it is: training "
                f"fails on the example ({first_line(error)}); to train the cut network, give an example of the size "
                "that the network was made for, unless training needs more than inputs, such as targets"
            )
        else:
            if len(trained.unread) < len(run.unread):
                outputs[True] = signature(run.forward(args))
        set_mode(bones, training=False)
    run.finish()
    return Structure(bones, args, outputs, run)


def _plain_ties(structure: Structure) -> list[AttributeTie]:
    """Integers that certainly follow: the number of groups of depthwise layers, sizes of weightless norms."""
    modules = dict(structure.skeleton.named_modules())
    ties: dict[tuple[str, str], AttributeTie] = {}
    for name, atoms in structure.discovered.group_uses:
        for attribute in ("groups", "num_groups"):
            if getattr(modules[name], attribute, None) == len(atoms):
                ties.setdefault((name, attribute), AttributeTie(name, attribute, None, len(atoms), atoms))
    for name, module in modules.items():
        if (
            isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm))
            and getattr(module, "weight", None) is None
        ):
            attribute = "num_channels" if isinstance(module, nn.GroupNorm) else "num_features"
            size = getattr(module, attribute, None)
            for fact in structure.discovered.facts.get(name, []):
                if fact.size == size:
                    ties.setdefault((name, attribute), AttributeTie(name, attribute, None, size, fact.atoms))
    return list(ties.values())


def _patterns(model: nn.Module, ignore: Iterable[str | nn.Module]) -> tuple[str, ...]:
    """Names and patterns, which mean the same in a cut copy of the network; modules by their names."""
    names = {id(module): name for name, module in model.named_modules()}
    patterns = []
    for item in [ignore] if isinstance(ignore, (str, nn.Module)) else ignore:
        if isinstance(item, nn.Module) and id(item) not in names:
            raise TraceError(f"ignore: {type(item).__name__} is not a module of this network")
        patterns.append(names[id(item)] if isinstance(item, nn.Module) else item)
    return tuple(patterns)


def _ignored(discovered: Discover, patterns: Iterable[str]) -> list[tuple[Atoms, str]]:
    frozen = []
    roles = axis_roles(discovered)
    for pattern in patterns:
        matches = [
            (position, axis)
            for position, axis in enumerate(discovered.axes)
            if axis.weight == pattern or axis.weight.startswith(f"{pattern}.") or fnmatch.fnmatch(axis.weight, pattern)
        ]
        if not matches:
            raise TraceError(f"ignore: no weight of this network is called {pattern!r} or lies under it")
        for position, axis in matches:
            if roles.get(position) != "in":
                frozen.append((np.arange(axis.start, axis.start + axis.length), "ignored on request"))
    return frozen


def _projected(structure: Structure) -> list[tuple[Atoms, str]]:
    """The states of LSTMs with a projection: torch takes one of the states' size for no projection."""
    frozen = []
    for axis in structure.axes:
        owner, _, name = axis.weight.rpartition(".")
        module = structure.skeleton.get_submodule(owner)
        if isinstance(module, nn.LSTM) and module.proj_size and name.startswith("weight_ih") and axis.dim == 0:
            atoms = np.arange(axis.start, axis.start + axis.length)
            frozen.append((atoms, f"{owner}: states that are projected must stay more than what they are projected to"))
    return frozen


def _cost(structure: Structure, args: Inputs) -> Cost:
    units, batch = structure.units, _samples(structure.discovered, args)
    macs, activations = [], []
    layers: dict[str, tuple[Term, list[Term]]] = {}
    for contraction in structure.discovered.contractions:
        if not contraction.counted:
            continue
        fixed: float = 1
        axes: dict[int, tuple[Axis, ...]] = {}
        for dim, length in enumerate(contraction.shape):
            axes[dim] = tuple(units.axis(atoms) for atoms in contraction.axes.get(dim, []))
            fixed *= length / length ** len(axes[dim])  # several layers: a flattened grid, of which each is one side
        positions, written = contraction.positions, contraction.written
        # Among the positions, only channels that can go make a difference.
        moving = [atoms for atoms in contraction.passing if (units.group_of[units.position(atoms)] >= 0).any()]
        for atoms in moving:
            positions, written = positions // len(atoms), written // len(atoms)
        passing = tuple(map(units.axis, moving))
        macs.append(Term(positions * fixed / batch, (*itertools.chain(*axes.values()), *passing)))
        rows, length = axes[contraction.rows], contraction.shape[contraction.rows]
        width = Term(length / length ** len(rows), rows)
        layers.setdefault(contraction.module, (width, []))[1].append(macs[-1])
        activations.append(Term(written * width.coefficient / batch, (*rows, *passing)))
    lengths: dict[str, list[Axis]] = {}  # of weights, where they are more than one
    for axis in structure.axes:
        lengths.setdefault(axis.weight, []).append(units.axis(np.arange(axis.start, axis.start + axis.length)))
    params: dict[str, list[Term]] = {}  # by module
    for name, tensor in structure.skeleton.named_parameters():
        owner = name.partition(".parametrizations.")[0].rpartition(".")[0]
        params.setdefault(owner, []).append(Term(min(tensor.numel(), 1), tuple(lengths.get(name, ()))))
    return Cost(
        [group.name for group in units.groups],
        [group.size for group in units.groups],
        macs,
        itertools.chain(*params.values()),
        activations,
        [LayerCost(name, width, tuple(terms), tuple(params.get(name, ()))) for name, (width, terms) in layers.items()],
    )


def _samples(discovered: Discover, args: Inputs) -> int:
    """How many samples the example holds: one if it has no batch dimension."""
    first = max((value for value in tree_iter(args) if isinstance(value, Tensor)), key=lambda value: value.ndim)
    reader = discovered.contractions[0]
    if first.ndim <= 1 and len(reader.shape) == 2:
        return 1
    if first.ndim == len(reader.shape) - 1 and first.shape[0] == reader.shape[reader.columns]:
        # A convolution adds the batch dimension itself; detectors take a list of images.
        images = next(iter(args.values() if isinstance(args, dict) else args))
        return len(images) if isinstance(images, (list, tuple)) else 1
    return first.shape[0] if first.ndim else 1


def _frozen(structure: Structure) -> dict[str, str]:
    """Per layer that produces channels, why some of them must stay; also where nothing could be followed to a layer."""
    units, roles = structure.units, axis_roles(structure.discovered)
    filters = {
        name: int(getattr(module, "transposed", False))
        for name, module in structure.discovered.model.named_modules()
        if isinstance(module, (_ConvNd, nn.Linear)) and getattr(module, "groups", 1) == 1
    }
    frozen: dict[str, str] = {}
    stays = np.zeros(max([int(units.unit_class.max(initial=0)), *units.reasons]) + 1, bool)
    stays[list(units.reasons)] = True
    for position, axis in enumerate(structure.axes):
        layer = axis.weight.removesuffix(".weight")
        if roles.get(position, "out" if filters.get(layer) == axis.dim else "") != "out":
            continue
        classes = units.unit_class[axis.start : axis.start + axis.length]
        stuck = classes[stays[classes]]
        if len(stuck):
            reason = units.reasons[int(stuck[0])]
            share = "" if len(stuck) == axis.length else f" ({len(stuck)} of {axis.length} channels)"
            frozen[layer] = reason + share
    return frozen


def _mixing(structure: Structure) -> frozenset[str]:
    """Groups whose units influence one another through normalisation or reduction over channels."""
    units = structure.units
    found: set[int] = set()
    for atoms in structure.discovered.mixed:
        positions = units.position(atoms)
        if (units.unit_class[positions] != units.unit_class[positions[:1]]).any():
            found |= set(units.group_of[positions].ravel().tolist())
    return frozenset(units.groups[group].name for group in found if group >= 0)
