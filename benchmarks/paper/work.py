"""What a cell does: each kind one function, all on the library's own parts.

A worker keeps the data and the networks between cells. Nothing here looks at test images before a network is
final: searches and objectives see training images, choices see validation images.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lcprune
from lcprune import data, models, tune
from lcprune.data import Dataset
from lcprune.files import write_json
from lcprune.runs import PLAN, RunFolder
from lcprune.study import Network, Study, epoch_rows, record_metric_error
from lcprune.tune.checkpoint import save_weights
from paper.cells import DONE, Cell, percent
from paper.scale import Scale


class Bench:
    """The data, the networks, and where cells leave what they find.

    Args:
        spec: the data set.
        out: one folder per cell goes in here.
        scale: how large everything is.
        device: where networks run.
        channels_last: memory layout while tuning.
        precision: of tuning and of searches' candidates; the finalists of a search are judged in float32.
    """

    def __init__(
        self, spec: str, out: Path, scale: Scale, device: str, channels_last: bool = True, precision: str = "bf16"
    ) -> None:
        self.out, self.scale, self.device = out, scale, torch.device(device)
        self.precision = precision if self.device.type == "cuda" else "fp32"
        self.training = {"channels_last": channels_last, "precision": self.precision}
        self.network = cache(self._network)
        self.graph = cache(self._graph)
        self.dataset: Dataset = data.load(spec, seed=0, val=scale.val)

    def run(self, cell: Cell, deadline: float = math.inf) -> bool:
        """Do a cell, or go on with it; False if time ran out first.

        Args:
            cell: what to do.
            deadline: as `time.time` counts; a tuning stops there and leaves a checkpoint.
        """
        if is_done(self.out, cell.name):
            return True
        started = time.perf_counter()
        with self.open(cell) as run:
            summary = _KINDS[cell.kind](self, cell, run, deadline)
        if summary is not None:
            self.close(cell, {"seconds": round(time.perf_counter() - started, 1), **summary})
        return summary is not None

    def open(self, cell: Cell) -> RunFolder:
        """The folder of a cell."""
        folder = self.out / cell.name
        settings = {"network": cell.network, "kind": cell.kind, "trial": cell.trial, "data": self.dataset.name}
        settings["options"] = {name: value for name, value in cell.options.items() if not isinstance(value, dict)}
        return (
            RunFolder.open(folder) if (folder / "config.toml").exists() else RunFolder.create(folder, "paper", settings)
        )

    def close(self, cell: Cell, summary: Mapping[str, Any]) -> None:
        """Say that a cell is complete."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        folder = self.out / cell.name
        write_json(folder / DONE, {"cell": asdict(cell), "machine": where, "torch": torch.__version__, **summary})
        for name in ("checkpoint.safetensors", "model.safetensors"):  # only an unfinished tuning needs them
            (folder / "tuning" / name).unlink(missing_ok=True)

    def _network(self, name: str) -> nn.Module:
        """The network that is pruned, in evaluation mode."""
        if name == self.scale.network:
            weights = self.scale.weights
        else:
            weights = self.out / name / "baseline" / "model.safetensors"
        torch.manual_seed(0)
        model = models.build(name, num_classes=self.dataset.num_classes, weights=weights)
        return model.to(self.device).eval()

    def _graph(self, name: str) -> lcprune.ChannelGraph:
        return lcprune.trace(self.network(name), self.example(name))

    def example(self, name: str) -> torch.Tensor:
        """One input of a network."""
        return models.example_input(name).to(self.device)

    def search(self, **changes: Any) -> lcprune.Search:
        """Settings of a search at this scale."""
        return lcprune.Search(**{"pool": self.scale.pool, "iterations": self.scale.iterations, **changes})

    def evaluation(self, images: data.Batches | None = None, **changes: Any) -> lcprune.Evaluation:
        """How candidates are judged: by the paper's objective, unless a cell says another."""
        known = {"images": self.scale.images, "precision": self.precision, "after": "cut"}
        return lcprune.Evaluation(images, **{**known, **changes})

    def images(self, seed: int, device: torch.device | str = "cpu") -> data.Batches:
        """Training images that selections are judged on."""
        return self.dataset.batches("train", 128, limit=self.scale.images, seed=seed, device=device)

    def judge(self, model: nn.Module, split: str, prefix: str) -> dict[str, float | None]:
        """Loss and accuracy on a split, under names that begin with `prefix`."""
        loss, accuracy = tune.evaluate(model, self.dataset, split, device=self.device)
        return {f"{prefix}loss": loss if math.isfinite(loss) else None, f"{prefix}accuracy": accuracy}

    def row(self, cell: Cell, method: str, limit: float, resource: str, plan: Any) -> dict[str, Any]:
        """What every row of results says about a network."""
        graph = self.graph(cell.network)
        what = "" if resource == "macs" else " parameters"
        return {
            "network": f"{method} {percent(limit)} %{what}",
            "method": method,
            "resource": resource,
            "limit": limit,
            "seed": cell.trial,
            "macs": int(plan.macs),
            "params": int(plan.params),
            "macs_share": plan.macs / graph.macs,
            "params_share": plan.params / graph.params,
        }


def is_done(out: Path, name: str) -> bool:
    """Whether a cell is complete."""
    return (out / name / DONE).is_file()


def seconds_until(deadline: float) -> float | None:
    """What is left, as `max_seconds` wants it."""
    return None if math.isinf(deadline) else max(0.0, deadline - time.time())


Summary = dict[str, Any]


# -- kinds of cells ----------------------------------------------------------------------------------------


def train(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """A baseline from scratch."""
    torch.manual_seed(0)
    model = models.build(cell.network, num_classes=bench.dataset.num_classes)
    recipe = tune.recipe("baseline", **{"eval_every": 5, **bench.training, **cell.options["recipe"]})
    result = _fit(bench, model, recipe, run.file("tuning"), deadline)
    if not result.finished:
        return None
    save_weights(run.file("model.safetensors"), model)
    macs, params = bench.graph(cell.network).macs, bench.graph(cell.network).params
    row = {"network": "original", "method": "original", "limit": None, "seed": 0, "macs": macs, "params": params}
    row |= bench.judge(model, "val", "val_") | bench.judge(model, "test", "")
    add_rows(run, training=epoch_rows("original", result.history), results=[row])
    return {"recipe": recipe.to_json(), "seconds": round(result.seconds, 1), "rate": result.images_per_second}


def frontier(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """One search for one or many limits; every network judged before tuning."""
    options = cell.options
    resource, metric = options.get("resource", "macs"), options.get("metric", "l2")
    limits: list[float] = options["limits"]
    settings = dict(options.get("search", {}))
    judged = {"after": settings.pop("after", "cut")}
    search, evaluation = bench.search(**settings), bench.evaluation(bench.images(cell.trial), **judged)
    found = lcprune.pareto(
        bench.graph(cell.network),
        repair="none",
        data=evaluation,
        methods=[lcprune.LcP(search) if method == "lcp" else method for method in options["methods"]],
        learn=options.get("learn", "tightest"),
        metric=metric,
        min_keep=options.get("min_keep", 0.1),
        seed=cell.trial,
        run=lcprune.Job(run.file("search"), resume=True),
        progress=False,
        **{resource: limits},
    )
    rows, schedule = [], []
    for point in found.points:
        model = point.model.to(bench.device).eval()
        row = bench.row(cell, point.method, point.limit, resource, point.plan)
        row |= {"metric": metric, "min_keep": options.get("min_keep", 0.1), "full_loss": found.full_loss}
        row |= {"difference": point.difference if math.isfinite(point.difference) else None}
        judged = bench.judge(model, "val", "val_") | bench.judge(model, "test", "")
        rows.append(row | {f"{name}_before": value for name, value in judged.items()})
        sizes = {group.name: group.size for group in bench.graph(cell.network).groups}
        schedule += [
            {"network": row["network"], "method": point.method, "limit": point.limit, "group": name}
            | {"position": position, "size": size, "kept": len(point.plan.kept.get(name, range(size)))}
            for position, (name, size) in enumerate(sizes.items())
        ]
        point.plan.save(run.file("plans", f"{point.method}-{percent(point.limit)}.json"))
    curves = [
        {"network": f"lcp {percent(limit)} %", "method": "lcp", "limit": limit, "iteration": record.iteration}
        | {"difference": record.difference, "best": record.best, "naive": history[0].difference}
        for limit, history in found.histories.items()
        for record in history
        if math.isfinite(record.difference)
    ]
    add_rows(run, search=curves, schedule=schedule, results=rows)
    took = {percent(limit): history[-1].seconds for limit, history in found.histories.items()}
    return {"search": {"precision": evaluation.precision, "candidates": search.total, "seconds": took}}


def metric_error(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """Metrics of units beside how far the loss moves without them; in float32, since many differences are tiny."""
    network = Network(cell.network, bench.network(cell.network), bench.example(cell.network))
    evaluation = bench.evaluation(precision="fp32")
    study = Study(
        run, network, bench.graph(cell.network), bench.dataset, progress=False, evaluation=evaluation, repair="none"
    )
    record_metric_error(study, ("l1", "l2", "taylor"), cell.options["units"], seed=cell.trial)
    return {"images": evaluation.images}


class Tuning:
    """One network of a frontier, to be fine-tuned by itself or in a fleet.

    Args:
        bench: where it is done.
        cell: which one.
        run: its folder.
    """

    def __init__(self, bench: Bench, cell: Cell, run: RunFolder) -> None:
        options, self.bench, self.cell, self.run = cell.options, bench, cell, run
        self.plan = lcprune.Plan.load(bench.out / cell.needs[0] / "plans" / f"{options['plan']}.json")
        self.full = bench.network(cell.network)
        self.model = self.begin()
        changes = {"eval_every": 10, "seed": cell.trial, **bench.training, **options["recipe"]}
        self.recipe = tune.recipe("finetune", **changes)

    def begin(self) -> nn.Module:
        """The cut network before tuning: with weights of its own where the method changed them."""
        source = self.bench.out / self.cell.needs[0]
        return lcprune.load(source, self.full) if (source / PLAN).is_file() else self.plan.apply(self.full)

    def teacher(self) -> nn.Module | None:
        """The network to imitate, if the recipe wants one."""
        return copy.deepcopy(self.full) if self.recipe.distill > 0 else None

    def judged(self, result: tune.FitResult) -> Summary:
        """Judge the tuned network, keep it and its rows."""
        bench, options, model, plan = self.bench, self.cell.options, self.model, self.plan
        lcprune.save(self.run.path, model, plan)
        row = bench.row(self.cell, options["method"], options["limit"], options["resource"], plan)
        before = self.begin()
        row |= {f"{name}_before": value for name, value in bench.judge(before, "val", "val_").items()}
        row |= bench.judge(model, "val", "val_")
        if options.get("test", True):
            row |= {f"{name}_before": value for name, value in bench.judge(before, "test", "").items()}
            row |= bench.judge(model, "test", "")
        epochs = epoch_rows(row["network"], result.history)
        entries = [{**entry, "method": row["method"], "limit": row["limit"]} for entry in epochs]
        add_rows(self.run, training=entries, results=[row])
        rate = result.images_per_second
        return {"recipe": self.recipe.to_json(), "seconds": round(result.seconds, 1), "rate": rate}


def tuned(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """Fine-tune one network of a frontier, judge it, keep it."""
    one = Tuning(bench, cell, run)
    result = _fit(bench, one.model, one.recipe, run.file("tuning"), deadline, one.teacher())
    return one.judged(result) if result.finished else None


def objective(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """What cheap objectives say of one selection, and what a brief tuning makes of it."""
    from paper import objectives

    found = objectives.study(bench, [cell], deadline)
    return None if found is None else found[0].keep(run)


def method(bench: Bench, cell: Cell, run: RunFolder, deadline: float) -> Summary | None:
    """A network cut by another method."""
    from paper import rivals

    return rivals.cut(bench, cell, run)


def _fit(
    bench: Bench,
    model: nn.Module,
    recipe: tune.Recipe,
    place: Path,
    deadline: float,
    teacher: nn.Module | None = None,
) -> tune.FitResult:
    return tune.fit(
        model,
        bench.dataset,
        recipe,
        run_dir=place,
        resume=True,
        teacher=teacher,
        progress=False,
        device=bench.device,
        workers=0,
        checkpoint_seconds=60.0,
        max_seconds=seconds_until(deadline),
    )


_KINDS = {
    "train": train,
    "frontier": frontier,
    "metric": metric_error,
    "tune": tuned,
    "objective": objective,
    "method": method,
}


def add_rows(run: RunFolder, **records: Sequence[Mapping[str, Any]]) -> None:
    """Record rows, unless an earlier run that was stopped just then did."""
    for kind, rows in records.items():
        if rows and not run.records(kind):
            run.add(kind, *rows)
