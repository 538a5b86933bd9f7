"""Does compensation help after tuning? Cheap objectives of a selection against what tuning makes of it.

    python benchmarks/paper/run.py --data cifar10:PATH --out runs/paper --show objectives    # the cells
    python benchmarks/paper/tables.py --runs runs/paper --show objectives                     # table and figure

Selections of one size: naive, uniform, LcP's, candidates that its search met, and random compensations of several
spreads. Of each: the loss and the distance to the full network's outputs on training images that no search saw,
right after the cut, after new batch-norm statistics, after the quick repair that searches give their candidates
("repaired"), after the repair that users get ("mended"), and after a few steps of tuning; and the validation loss and
accuracy after a brief tuning. What an objective is worth is its rank correlation with the latter. Selections are tuned
in fleets: the price of a few steps is the fleet's time divided by its members. The moments that quick repairs need are
measured once for all selections, and are in nobody's price.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import lcprune
from lcprune import tune
from lcprune.batches import Batch, draw
from lcprune.evaluate import FromWhole
from lcprune.evaluate.prepare import Preparation
from lcprune.repairs import mend
from lcprune.repairs.distance import spread_of
from lcprune.search import Space, read_records
from lcprune.select import Limits, Ranking

if TYPE_CHECKING:
    from lcprune.runs import RunFolder
    from paper.cells import Cell
    from paper.work import Bench

# The searches draw their images with the seeds 1, 2, 3: these are others, so that no selection was fitted to them.
_IMAGES_SEED = 0
_REPAIR_SEED = 4  # of yet others

OBJECTIVES = {
    "cut loss": "loss difference (the paper's)",
    "cut distance": "distance to the full network's outputs",
    "recalibrated loss": "loss difference after new batch-norm statistics",
    "recalibrated distance": "distance after new batch-norm statistics",
    "repaired loss": "loss after quick repair (the library's)",
    "repaired distance": "distance after quick repair",
    "repaired squares": "squared distance after quick repair (the library's, without labels)",
    "mended loss": "loss after the whole repair",
    "mended accuracy": "accuracy after the whole repair",
    "step loss": "loss after {} steps of tuning",
    "step distance": "distance after {} steps of tuning",
    "removed": "metric of what was removed",
    "params": "parameters kept",
}


# -- measuring ---------------------------------------------------------------------------------------------


def select(bench: Bench, cell: Cell) -> lcprune.Plan:
    """The selection that a cell is about."""
    options, graph = cell.options, bench.graph(cell.network)
    scores = lcprune.metrics.score(graph, "l2")
    ranking = Ranking(scores, graph.cost, 0.1)
    limits = Limits(macs=options["limit"])
    if options["selection"] == "uniform":
        return graph.plan(ranking.uniform(limits)).with_meta(selection="uniform")
    beta = np.zeros(len(graph.groups))
    if "spread" in options:
        noise = np.random.default_rng(options["seed"]).standard_normal(len(beta))
        beta = options["spread"] * noise * Space.of(scores).deviations
    elif "source" in options:
        source = bench.out / options["source"]
        if "iteration" in options:
            beta = np.array(read_records(source / "search" / "search.jsonl")[1][options["iteration"]].beta)
        else:
            beta = np.array(lcprune.Plan.load(source / "plans" / f"{options['plan']}.json").meta["beta"])
    return graph.plan(ranking.select(limits, beta=beta)).with_meta(selection=options["selection"], beta=beta.tolist())


@dataclass(frozen=True)
class Found:
    """What a study says of one selection."""

    plan: lcprune.Plan
    row: dict[str, Any]
    summary: dict[str, Any]

    def keep(self, run: RunFolder) -> dict[str, Any]:
        """Write it into a cell's folder; returns what the cell says of itself."""
        from paper.work import add_rows

        self.plan.save(run.file("plans", "plan.json"))
        add_rows(run, objective=[self.row])
        return self.summary


def study(bench: Bench, cells: Sequence[Cell], deadline: float) -> list[Found] | None:
    """Every objective of some selections of one network, and what a brief tuning makes of them, all in one fleet.

    Args:
        bench: where it is done.
        cells: the selections.
        deadline: as `time.time` counts.

    Returns:
        What was found of each; None if time ran out first: then all begin again.
    """
    from paper.work import seconds_until

    full = bench.network(cells[0].network)
    plans = [select(bench, cell) for cell in cells]
    batches = list(bench.images(_IMAGES_SEED, bench.device))
    with torch.no_grad():
        taught = [full(images) for images, _ in batches]
    quick = Preparation(
        bench.graph(cells[0].network), [Batch(*batch, len(batch[1])) for batch in batches], lcprune.Evaluation()
    )
    rows = []
    for cell, plan in zip(cells, plans, strict=True):
        row = bench.row(cell, cell.options["selection"], cell.options["limit"], "macs", plan)
        rows.append(row | _before_tuning(bench, cell, plan, batches, taught, quick) | {"fleet": len(cells)})
    clock = _Clock(len(cells))

    def look(step: int) -> Callable[[list[nn.Module]], None]:
        def measure(networks: list[nn.Module]) -> None:
            trained = clock.stop()
            for row, model in zip(rows, networks, strict=True):
                started = time.perf_counter()
                row.update({f"step{step} {key}": value for key, value in _look(model, batches, taught).items()})
                row["seconds"][f"step{step}"] = round(trained + time.perf_counter() - started, 3)
            clock.start()

        return measure

    # The fine-tuning schedule in small; the same order and crops for all, so that only the selection differs.
    recipe = tune.recipe("finetune", epochs=bench.scale.brief, eval_every=bench.scale.brief, seed=1, **bench.training)
    results = tune.fit_fleet(
        full,
        plans,
        bench.dataset,
        recipe,
        device=bench.device,
        progress=False,
        max_seconds=seconds_until(deadline),
        looks={0: lambda networks: clock.start(), **{step: look(step) for step in bench.scale.looks}},
    )
    if not all(result.finished for result in results):
        return None
    about = {"brief": bench.scale.brief, "looks": list(bench.scale.looks), "fleet": len(cells)}
    return [
        Found(plan, row | bench.judge(result.model, "val", "val_"), about)
        for plan, row, result in zip(plans, rows, results, strict=True)
    ]


class _Clock:
    """Training time that each member of a fleet accounts for; what is looked at in between does not count."""

    def __init__(self, members: int) -> None:
        self.members, self.total, self.since = members, 0.0, 0.0

    def start(self) -> None:
        self.since = time.perf_counter()

    def stop(self) -> float:
        """Seconds per member so far."""
        self.total += time.perf_counter() - self.since
        return self.total / self.members


def _before_tuning(
    bench: Bench,
    cell: Cell,
    plan: lcprune.Plan,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    taught: Sequence[torch.Tensor],
    quick: Preparation,
) -> dict[str, Any]:
    """Objectives that need no tuning, with the seconds that each takes."""
    graph, full = bench.graph(cell.network), bench.network(cell.network)
    seconds: dict[str, float] = {}
    row: dict[str, Any] = {"seconds": seconds, "full loss": _look(full, batches, taught)["loss"]}
    scores = lcprune.metrics.score(graph, "l2")
    kept = [list(plan.kept.get(group.name, range(group.size))) for group in graph.groups]
    row["removed"] = float(sum(score.sum() - score[units].sum() for score, units in zip(scores, kept, strict=True)))
    started = time.perf_counter()
    model = plan.apply(full).eval()
    row |= {f"cut {key}": value for key, value in _look(model, batches, taught).items()}
    seconds["cut"] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    tune.recalibrate(model, bench.dataset, bench.scale.images, seed=_IMAGES_SEED, device=bench.device)
    row |= {f"recalibrated {key}": value for key, value in _look(model, batches, taught).items()}
    seconds["recalibrated"] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    model = plan.apply(full)
    quick(model, plan)
    row |= {f"repaired {key}": value for key, value in _look(model, batches, taught).items()}
    seconds["repaired"] = round(time.perf_counter() - started, 3)
    row["repaired squares"] = _squares(model, batches, taught)
    started = time.perf_counter()
    # Repaired with other images than those that it is judged on: a refit learns its images by heart.
    samples = draw(bench.images(_REPAIR_SEED), bench.scale.images, _REPAIR_SEED)
    model, done = mend(full, plan, plan.apply(full).eval(), samples, classes=True, progress=False)
    row |= {f"mended {key}": value for key, value in _look(model, batches, taught).items()}
    seconds["mended"] = round(time.perf_counter() - started, 3)
    return row | bench.judge(model, "val", "mended_val_") | {"repair": done.how}


@torch.no_grad()
def _look(
    model: nn.Module, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], taught: Sequence[torch.Tensor]
) -> dict[str, float | None]:
    """Loss, accuracy and mean Kullback-Leibler distance of the full network's outputs from these."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=batches[0][1].device)
    for (images, labels), teacher in zip(batches, taught, strict=True):
        logits = model(images).float()
        known, ours = functional.log_softmax(teacher.float(), 1), functional.log_softmax(logits, 1)
        distance = functional.kl_div(ours, known, reduction="sum", log_target=True)
        correct = (logits.argmax(1) == labels).sum()
        sums += torch.stack([functional.cross_entropy(logits, labels, reduction="sum"), distance, correct]).double()
    means = (sums / sum(len(labels) for _, labels in batches)).tolist()
    return {
        name: value if math.isfinite(value) else None
        for name, value in zip(("loss", "distance", "accuracy"), means, strict=True)
    }


@torch.no_grad()
def _squares(
    model: nn.Module, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], taught: Sequence[torch.Tensor]
) -> float | None:
    """What a search without labels minimises: squared differences from the full network's outputs."""
    answers = torch.cat([*taught])
    apart = FromWhole((float(spread_of(answers)) / len(answers),))
    both = zip(batches, taught, strict=True)
    sums = [len(labels) * float(apart(model(images), (known,))) for (images, labels), known in both]
    value = sum(sums) / len(answers)
    return value if math.isfinite(value) else None


# -- what it shows -----------------------------------------------------------------------------------------


def value_of(row: Mapping[str, Any], objective: str) -> float:
    """What an objective says of a selection: lower is meant to be better; infinite where it has no number."""
    value = row.get(objective)
    if value is None:
        return math.inf
    if objective in ("cut loss", "recalibrated loss") and row.get("full loss") is not None:
        return abs(value - row["full loss"])
    return -float(value) if objective in ("params", "mended accuracy") else float(value)


def objectives_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The objectives that were measured of all these selections, with words for them."""
    steps = sorted({int(key[4:].split()[0]) for row in rows for key in row if key.startswith("step") and " " in key})
    found = {}
    for name, words in OBJECTIVES.items():
        if name.startswith("step "):
            found.update({f"step{step} {name[5:]}": words.format(step) for step in steps})
        elif rows and all(name in row for row in rows):
            found[name] = words
    return found


def spearman(
    first: NDArray[np.float64], second: NDArray[np.float64], times: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Rank correlations; equal values share their mean rank, NaN where a side never varies.

    Args:
        first, second: (selections,).
        times: (samples, selections), how often each selection is in each sample; None for one sample with each once.

    Returns:
        (samples,).
    """
    weights = np.ones((1, len(first)), dtype=np.int64) if times is None else times
    parts = []
    for values in (first, second):
        below, equal = values[:, None] < values[None, :], values[:, None] == values[None, :]
        ranks = weights @ below + (weights @ equal - 1) / 2
        parts.append(ranks - (weights * ranks).sum(1, keepdims=True) / weights.sum(1, keepdims=True))
    ours, theirs = parts
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt((weights * ours**2).sum(1) * (weights * theirs**2).sum(1))
        return np.where(scale > 0, (weights * ours * theirs).sum(1) / scale, np.nan)


def correlate(
    rows: Sequence[Mapping[str, Any]], objective: str, outcome: str = "val_loss", resamples: int = 2000
) -> dict[str, float | None]:
    """Rank correlation of an objective with an outcome of tuning, and its 95 % bootstrap interval.

    Args:
        rows: one per selection.
        objective: lower is meant to be better.
        outcome: "val_loss" or "val_accuracy"; the latter is turned round, so that +1 is always a perfect objective.
        resamples: of the bootstrap.
    """
    said = np.array([value_of(row, objective) for row in rows])
    came = np.array([row[outcome] if row.get(outcome) is not None else math.inf for row in rows], dtype=np.float64)
    came = -came if outcome == "val_accuracy" else came
    times = np.random.default_rng(0).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=resamples)
    again = spearman(said, came, times)
    again = again[np.isfinite(again)]
    low, high = np.quantile(again, [0.025, 0.975]).tolist() if len(again) else (None, None)
    rho = float(spearman(said, came)[0])
    return {"rho": rho if math.isfinite(rho) else None, "low": low, "high": high, "selections": len(rows)}


def analyse(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per limit, set of selections and objective: correlation with both outcomes, and its price."""
    found = []
    for limit in sorted({row["limit"] for row in rows}, reverse=True):
        here = [row for row in rows if row["limit"] == limit]
        # Wild selections make any objective look wise; what a search must tell apart are the sensible ones.
        sensible = [row for row in here if not row["method"].startswith(("random-3", "uniform"))]
        for words, some in (("all", here), ("sensible", sensible)):
            for objective, title in objectives_of(here).items():
                if len(some) < 4:
                    continue
                price = [row["seconds"].get(objective.split()[0], 0.0) for row in some if "seconds" in row]
                found.append(
                    {"limit": limit, "set": words, "objective": objective, "words": title}
                    | {f"loss_{key}": value for key, value in correlate(some, objective, "val_loss").items()}
                    | {f"accuracy_{key}": value for key, value in correlate(some, objective, "val_accuracy").items()}
                    | {"seconds": round(float(np.median(price)), 3) if price else None}
                )
    return found
