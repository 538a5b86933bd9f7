"""How much a network minds what each group loses: every group is cut alone, once, and the outputs are compared.

What the readers of a group lose at every width is known in closed form; what that does to the outputs is not. So one
width of each group is measured, without labels: as far as the outputs are then from the whole network's, so much does
this share count. Cuts of several groups cost about the sum of what each costs alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import ConfigError, DataError
from lcprune.evaluate import Evaluator, FromWhole, answered, parted
from lcprune.progress import Progress

if TYPE_CHECKING:
    from lcprune.task import Task

logger = logging.getLogger("lcprune")

Floats = NDArray[np.float64]

_LEFT = 0.65  # of a group's units, when it is measured
_IMAGES = 256  # at most, to compare outputs on: these tell more than losses do
_LEAST = 1e-3  # of the largest weight: what nobody seems to mind costs something all the same


def moved(task: Task, shares: Sequence[Floats]) -> list[Floats]:
    """For every group, how far outputs move with 0, 1, 2 ... of its best units left and all others whole.

    Likewise `shares` are what its readers lose; they are given back if outputs cannot be compared.
    """
    evaluator = _evaluator(task)
    if evaluator is None:
        return list(shares)
    ranking, weights, work = task.ranking, [], vars(evaluator.work).copy()
    with Progress("sensitivity", len(shares), task.progress) as bar:
        for group, (own, widths) in enumerate(zip(shares, ranking.widths, strict=True)):
            counts = ranking.sizes.copy()
            counts[group] = next((width for width in widths if width <= _LEFT * widths[0]), widths[-1])
            lost = own[counts[group]]
            weights.append(evaluator.loss(ranking.kept(counts)) / lost if lost > 0 else 0.0)
            bar.advance(group=task.graph.groups[group].name)
    vars(evaluator.work).update(work)  # what is counted is candidates
    if not np.isfinite(weights).all() or not any(weights):
        return list(shares)
    least = _LEAST * max(weights)
    return [max(weight, least) * own for weight, own in zip(weights, shares, strict=True)]


def _evaluator(task: Task) -> Evaluator | None:
    """Judges by how far outputs are from the whole network's; None if they cannot be compared."""
    on_gpu = next(task.graph.model.parameters()).device.type == "cuda"
    if on_gpu and task.evaluation.prepare is None and isinstance(task.judged[1].loss, FromWhole):
        return task.evaluator  # more images, but building another one takes longer there
    fitted, judging = parted(task.need_images(), task.evaluation)
    count = min(_IMAGES, len(fitted), len(judging))
    some: list[Any] = [*fitted[:count], *judging[:count]]
    for classes in (True, False) if task.classes else (False,):
        try:
            samples, distance = answered(task.graph.model, some, classes)
        except (ConfigError, DataError) as error:
            logger.info("groups are not cut alone by %s: %s", "divergence" if classes else "distance", error)
            continue
        how = replace(task.evaluation, loss_fn=distance, prepare=None)
        return task.engine.evaluator(task.graph, samples, how, quick=task.quick)
    return None
