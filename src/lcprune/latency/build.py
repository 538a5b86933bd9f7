"""Measuring a network's latency table: its layers, then a few whole networks to correct their sum by; and a cache."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lcprune import bf16, files
from lcprune.errors import LatencyError
from lcprune.graph.channel_graph import ChannelGraph
from lcprune.latency.backends import Backend, Probe, make_backend, medians
from lcprune.latency.fusion import fuse
from lcprune.latency.grid import measure_layer
from lcprune.latency.measure import batch_of
from lcprune.latency.operations import Operation, operations
from lcprune.latency.predict import Predictor
from lcprune.latency.steps import read_steps
from lcprune.latency.table import Correction, Table, fingerprint
from lcprune.progress import Progress

logger = logging.getLogger("lcprune")

# Shares of the widths that are kept, on average, by the networks that the correction is measured on: from all MACs to
# about a sixth of them, where most limits are.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4)
_WAY = 2  # of measuring: tables that were measured in another way are not taken from the cache
_LONG_MS = 300.0  # networks that take longer are measured fewer times
_LARGE = 2**24  # bytes of a network's inputs


def measure_table(
    graph: ChannelGraph,
    *,
    batch: int = 1,
    backend: str | Backend = "eager",
    device: str | torch.device | None = None,
    multiple_of: int | str = 1,
    cache: bool = True,
    progress: bool = True,
) -> Table:
    """The latency table of a network on this machine: from the cache, or measured now.

    Args:
        graph: of the network.
        batch: samples at a time.
        backend: one of `BACKENDS`.
        device: None for where the network is.
        multiple_of: also correct it for networks whose widths are multiples of this; "auto" reads the steps off it.
        cache: look for it in the cache, and leave it there.
        progress: show a bar.

    Raises:
        LatencyError: the backend cannot run this network.
    """
    if batch < 1 or batch != int(batch):
        raise LatencyError(f"batch={batch} is not a batch size: give a whole number from 1 on")
    where = next(graph.model.parameters()).device if device is None else torch.device(device)
    runner = make_backend(backend, where) if isinstance(backend, str) else backend
    bf16.refuse_network(graph.model, where, LatencyError)
    precision = str(next(graph.model.parameters()).dtype).removeprefix("torch.")
    if runner.name == "onnx":
        from lcprune.latency.onnx import need_float32

        need_float32(precision)
    every = operations(graph, batch)
    about = {**runner.describe(), "batch": batch, "precision": precision, "network": fingerprint(every, graph)}
    # Vectors of 16 bytes: layers whose channels fill them are often run by other, faster code.
    about["even"] = 16 // next(graph.model.parameters()).element_size()
    place = cache_folder() / f"{_digest({**about, 'way': _WAY})}.json"
    table = _cached(place) if cache else None
    if table is None:
        table = _measured(graph, runner, every, about, progress)
        if cache:
            table.save(place)
    width = read_steps(table, graph) if multiple_of == "auto" else int(multiple_of)
    if width > 1 and width not in table.rounded:
        table = calibrate(table, graph, runner, width)
        if cache:
            table.save(place)
    return table


def _cached(place: Path) -> Table | None:
    if not place.is_file():
        return None
    try:
        table = Table.load(place)
    except LatencyError as error:
        logger.warning("%s; it is measured again", error)
        return None
    logger.info("latency table from %s", place)
    return table


def _measured(
    graph: ChannelGraph, runner: Backend, every: Sequence[Operation], about: dict[str, Any], progress: bool
) -> Table:
    started = time.perf_counter()
    found = fuse(every, runner.fusion)
    table = Table(
        _measure_layers(runner, found, about["even"], progress),
        about["batch"],
        runner.name,
        about["device"],
        about["precision"],
        runner.fusion,
        about["even"],
        network=about["network"],
        versions=about["versions"],
    )
    table = replace(calibrate(table, graph, runner), seconds=time.perf_counter() - started)
    logger.info("measured a latency table of %d layer shapes in %.0f s", len(table.layers), table.seconds)
    return table


def calibrate(table: Table, graph: ChannelGraph, backend: Backend, multiple_of: int = 1) -> Table:
    """The table with its correction: measured on the whole network and on some randomly cut ones.

    Args:
        table: with layers alone.
        graph: of the network.
        backend: what runs it.
        multiple_of: of the cut networks' widths.
    """
    predictor = Predictor(table, graph, multiple_of)
    whole = measure_networks(backend, {"whole": graph.model}, graph.example_inputs, table.batch, rounds=(0, 0))["whole"]
    rng = np.random.default_rng(0)
    plans = [_random_counts(graph, share, rng, multiple_of) for share in _SHARES]
    networks = {str(index): _cut(graph, counts) for index, counts in enumerate(plans)}
    rounds = (1, 1) if whole > 5 * _LONG_MS else (1, 3) if whole > _LONG_MS else (5, 15)
    measured = measure_networks(backend, networks, graph.example_inputs, table.batch, rounds=rounds)
    sums = np.array([predictor.layers(counts) for counts in plans])
    times = np.array([measured[name] for name in networks])
    correction = fit(sums, times, backend.launches)
    entries = [
        {"multiple_of": multiple_of, "kept": counts.tolist(), "layers_ms": float(total), "measured_ms": float(ms)}
        for counts, total, ms in zip(plans, sums, times, strict=True)
    ]
    if multiple_of == 1:
        return replace(table, correction=correction, calibration=tuple(entries))
    rounded = {**table.rounded, multiple_of: correction}
    return replace(table, rounded=rounded, calibration=(*table.calibration, *entries))


def fit(sums: NDArray[np.float64], times: NDArray[np.float64], launches: bool = False) -> Correction:
    """Offset and factor that make sums over layers into measured times, with the least relative error.

    The least sum of sizes, not of squares: one slip of the clock must not spoil it.

    Args:
        sums: milliseconds of the layers, one per network.
        times: milliseconds measured.
        launches: whether narrow networks may all take the time that the host needs; that is then the floor.
    """
    floor = 0.0
    if launches:
        above = times > 1.15 * times.min()
        floor = float(np.median(times[~above]))
        # Networks at the floor say nothing about the GPU's time, except that it is less.
        if above.sum() < 2:
            factor = float(times[above][0] / sums[above][0]) if above.any() else 1.0
            return Correction(0.0, max(factor, 0.0), floor)
        sums, times = sums[above], times[above]
    weights = np.ones(len(times))
    for _ in range(20):
        matrix = np.stack([1 / times, sums / times], axis=1)
        offset, factor = np.linalg.lstsq(matrix * weights[:, None], weights, rcond=None)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ (offset, factor) - 1), 1e-3))
    # Nothing wider is faster, and nothing takes less than no time: then it is noise, and proportions are better. A
    # small negative offset only says that narrow networks gain more than their layers do by themselves.
    if factor <= 0 or offset < -0.5 * times.min():
        offset, factor = 0.0, float(np.median(times / np.maximum(sums, 1e-9)))
    return Correction(float(offset), float(factor), floor)


def measure_networks(
    backend: Backend,
    networks: dict[str, nn.Module],
    example_inputs: tuple[Any, ...],
    batch: int,
    rounds: tuple[int, int] = (5, 15),
) -> dict[str, float]:
    """Milliseconds of whole networks under a backend, in turns unless they are large.

    Args:
        backend: what runs them.
        networks: name -> network; put back to where and how they were.
        example_inputs: their arguments; repeated to the batch size.
        batch: samples at a time.
        rounds: fewest and most measurements of each, after the first one.
    """
    arguments = tuple(batch_of(value, batch, backend.device) for value in example_inputs)
    before = {name: (model.training, next(model.parameters()).device) for name, model in networks.items()}
    # A GPU's own clock needs less time than the host's.
    seconds = (20 if backend.launches else 10) * backend.moment
    large = backend.hoards and sum(value.nbytes for value in arguments if isinstance(value, torch.Tensor)) > _LARGE
    found: dict[str, float] = {}
    try:
        # One by one, if they take long or would not fit into memory together.
        for part in [[name] for name in networks] if large or rounds[0] <= 1 else [list(networks)]:
            runs = {}
            with torch.inference_mode():
                for name in part:
                    runs[name] = Probe(backend.network(networks[name].to(backend.device).eval(), arguments))
                    for _ in range(1 if rounds[0] <= 1 else 2):
                        runs[name].run()
            found |= medians(backend, runs, seconds=seconds, least=rounds[0], most=rounds[1], tolerance=0.005)
        return found
    finally:
        for name, model in networks.items():
            training, home = before[name]
            model.train(training).to(home)


def cache_folder() -> Path:
    """Where tables are kept: `LCPRUNE_CACHE`, or the user's cache folder."""
    return files.cache_folder("latency")


def _measure_layers(backend: Backend, found: Sequence[Operation], even: int, progress: bool) -> dict[str, Any]:
    shapes: dict[str, Operation] = {}
    for one in found:
        if one.key not in shapes or one.full > shapes[one.key].full:
            shapes[one.key] = one
    layers = {}
    with Progress("latency table", total=len(shapes), enabled=progress) as bar, torch.inference_mode():
        for key, one in shapes.items():
            try:
                layers[key] = measure_layer(backend, one, even)
            except (RuntimeError, TypeError, ValueError) as error:
                raise LatencyError(f"layer {key} cannot be timed by itself: {error}") from error
            bar.advance(layer=one.name.removeprefix("aten::"))
    backend.release()
    return layers


def _random_counts(graph: ChannelGraph, share: float, rng: np.random.Generator, multiple_of: int) -> NDArray[np.int64]:
    if share == 1.0:
        return graph.cost.sizes.copy()
    shares = np.clip(share * rng.uniform(0.6, 1.4, len(graph.groups)), 0, 1)
    wide = np.maximum(1, np.round(graph.cost.sizes * shares / multiple_of)).astype(np.int64) * multiple_of
    return np.minimum(graph.cost.sizes, wide)


def _cut(graph: ChannelGraph, counts: NDArray[np.int64]) -> nn.Module:
    return graph.plan([np.arange(count) for count in counts]).apply(graph.model)


def _digest(about: dict[str, Any]) -> str:
    text = json.dumps(about, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
