"""Pruning one network in several ways, tuning each result, and recording everything.

`prune`, `pareto`, `compare` and `demo` are all studies: they differ in which cuts they ask for. A study that
was stopped goes on where it was: finished networks are not made again, an unfinished search or tuning is
continued.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from lcprune.choosing import methods
from lcprune.data import Dataset
from lcprune.engine import Engine, LocalEngine
from lcprune.evaluate import Evaluation
from lcprune.framework import prune
from lcprune.graph import ChannelGraph
from lcprune.job import Job
from lcprune.latency import Latency
from lcprune.limit import Limit
from lcprune.outcome import PruneResult
from lcprune.plan import Plan
from lcprune.runs import RunFolder
from lcprune.search import Record, Search
from lcprune.storage import load, save
from lcprune.study.networks import PLAN, WEIGHTS, Network, trace_network
from lcprune.tune import Recipe

logger = logging.getLogger("lcprune")

ORIGINAL = "original"


@dataclass(eq=False)
class Study:
    """One network under study.

    Attributes:
        run: where everything is recorded.
        network: what is pruned.
        dataset: for searching (training images), tuning, and judging (test images); None for cuts without.
        recipe: how to tune; None for not at all.
        search: how LcP looks for betas.
        metric: how units are scored.
        min_keep: share of each group that stays.
        multiple_of: widths are multiples of this; as for `lcprune.prune`.
        progress: show bars.
        options: method -> settings of its own.
        engine: where the work is done.
        evaluation: how networks are judged while one is chosen.
    """

    run: RunFolder
    network: Network
    dataset: Dataset | None = None
    recipe: Recipe | None = None
    search: Search = field(default_factory=Search)
    metric: str = "l2"
    min_keep: float = 0.10
    multiple_of: int | None = None
    progress: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    engine: Engine = field(default_factory=LocalEngine)
    evaluation: Evaluation = field(default_factory=Evaluation)

    @cached_property
    def graph(self) -> ChannelGraph:
        """The network, traced once."""
        return trace_network(self.network)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.example.device

    def original(self) -> dict[str, Any]:
        """Judge the network as it is."""
        found = self.done(ORIGINAL, 0)
        if found is not None:
            return found
        row = {"network": ORIGINAL, "method": ORIGINAL, "limit": None, "seed": 0, **self._costs(self.graph)}
        row.update(self._judge(self.network.model, ""))
        self.run.add("results", row)
        return row

    def cut(self, method: str, limits: Mapping[str, Any], seed: int = 0, **options: Any) -> dict[str, Any]:
        """Prune by one method to one limit, tune, judge and record.

        Args:
            method: one of `lcprune.methods()`.
            limits: macs, params and/or latency, as for `lcprune.prune`.
            seed: of images, search and tuning.
            **options: passed to `lcprune.prune`.

        Returns:
            The row of results.
        """
        name = label(method, limits)
        found = self.done(name, seed)
        if found is not None:
            logger.info("%s: done before", trial(name, seed))
            return found
        result, seconds = self.choose(method, limits, seed, **options)
        return self.finish(name, method, limits, seed, result.model, result.plan, result.history, seconds)

    def choose(
        self, method: str, limits: Mapping[str, Any], seed: int = 0, **options: Any
    ) -> tuple[PruneResult, float]:
        """Prune by one method to one limit; the result and the seconds that it took. Arguments as for `cut`."""
        name = label(method, limits)
        logger.info("%s: pruning", trial(name, seed))
        folder = self.run.file("networks", slug(trial(name, seed)))
        started = time.perf_counter()
        own = {"search": self.search} if method == "lcp" else self.options.get(method)
        result = prune(
            self.graph,
            method=methods.make(method, own),
            metric=self.metric,
            data=replace(self.evaluation, data=self.batches(seed)),
            min_keep=self.min_keep,
            multiple_of=self.multiple_of,
            seed=seed,
            run=Job(folder, folder.exists(), self.engine),
            progress=self.progress,
            **limits,
            **options,
        )
        return result, time.perf_counter() - started

    def finish(
        self,
        name: str,
        method: str,
        limits: Mapping[str, Any],
        seed: int,
        model: nn.Module,
        plan: Any,
        history: Sequence[Record] = (),
        seconds: float = 0.0,
    ) -> dict[str, Any]:
        """Tune, judge, save and record a pruned network."""
        resource, given = next(iter(limits.items()))
        limit = limit_of(resource, given).number
        costs = self._costs(plan)
        row = {"network": name, "method": method, "resource": resource, "limit": limit, "seed": seed, **costs}
        row["search_seconds"] = round(seconds, 2)
        if "recalibrate" in plan.meta:
            row["recalibrate"] = plan.meta["recalibrate"]
        if "latency" in plan.meta:
            row.update(latency_row(plan.meta["latency"]))
        row.update(self._judge(model, "_before"))
        row.update({key.removesuffix("_before"): value for key, value in row.items() if key.endswith("_before")})
        folder = self.run.file("networks", slug(trial(name, seed)))
        epochs: list[dict[str, Any]] = []
        if self.recipe is not None and self.dataset is not None:
            rows = self.tune(model, folder / "tuning", name, seed)
            epochs = [{**entry, "method": method, "limit": limit} for entry in rows]
            row.update(self._judge(model, ""))
        save(folder, model, plan)
        # The row goes last: it says that this network is complete.
        kept = [{"network": name, "method": method, "limit": limit, **entry} for entry in self._schedule(plan)]
        self.add_once("schedule", name, kept)
        self.add_once("search", name, _search_rows(name, limit, history))
        self.add_once("training", name, epochs)
        self.run.add("results", row)
        return row

    def tune(self, model: nn.Module, folder: Any, name: str, seed: int) -> list[dict[str, Any]]:
        """Train a pruned network in place; returns one row per epoch."""
        from lcprune.tune import fit

        assert self.recipe is not None and self.dataset is not None
        recipe = replace(self.recipe, seed=self.recipe.seed + seed)
        logger.info("%s: tuning for %d epochs", trial(name, seed), recipe.epochs)
        result = fit(
            model,
            self.dataset,
            recipe,
            run_dir=folder,
            resume=True,
            teacher=self.teacher(),
            progress=self.progress,
            device=self.device,
        )
        model.eval()
        return epoch_rows(name, result.history)

    def teacher(self) -> nn.Module | None:
        """The network to imitate while tuning, if the recipe wants one."""
        return copy.deepcopy(self.network.model) if self.recipe is not None and self.recipe.distill > 0 else None

    def batches(self, seed: int) -> Any:
        """Training images for metrics and search, drawn with the seed."""
        if self.dataset is None:
            return None
        return self.dataset.batches("train", 128, limit=self.evaluation.images, seed=seed, device=self.device)

    def keep(self, row: Mapping[str, Any]) -> None:
        """Make one network the run's own: its plan and weights go to the top of the folder."""
        folder = self.run.file("networks", slug(trial(row["network"], row["seed"])))
        plan = Plan.load(folder / PLAN)
        base = open_like(self.network)
        save(self.run.path, load(folder, base), plan)

    def model_of(self, row: Mapping[str, Any]) -> nn.Module:
        """A finished network, from its folder."""
        if row["method"] == ORIGINAL:
            return self.network.model
        folder = self.run.file("networks", slug(trial(row["network"], row["seed"])))
        return load(folder, open_like(self.network)).to(self.device).eval()

    def done(self, name: str, seed: int) -> dict[str, Any] | None:
        """The row of a network that is complete."""
        rows = self.run.records("results")
        return next((row for row in rows if (row["network"], row["seed"]) == (name, seed)), None)

    def add_once(self, kind: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record rows of a network, unless it has some."""
        # The first trial stands for the others; and a run that was stopped between two files goes on here.
        if rows and not any(row.get("network") == name for row in self.run.records(kind)):
            self.run.add(kind, *rows)

    def _costs(self, costs: Any) -> dict[str, Any]:
        macs, params = int(costs.macs), int(costs.params)
        shares = {"macs_share": macs / self.graph.macs, "params_share": params / self.graph.params}
        return {"macs": macs, "params": params, **shares}

    def _judge(self, model: nn.Module, suffix: str) -> dict[str, Any]:
        if self.dataset is None:
            return {}
        loss, accuracy = judge(model, self.dataset, self.device)
        return {f"loss{suffix}": loss, f"accuracy{suffix}": accuracy}

    def _schedule(self, plan: Any) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "position": position,
                "size": group.size,
                "kept": len(plan.kept.get(group.name, range(group.size))),
            }
            for position, group in enumerate(self.graph.groups)
        ]


def judge(model: nn.Module, dataset: Dataset, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy on the test images; on the validation images where there are no others."""
    from lcprune.tune import evaluate

    loss, accuracy = evaluate(model, dataset, "test" if len(dataset.test) else "val", device=device)
    return float(loss), float(accuracy)


def open_like(network: Network) -> nn.Module:
    """A copy of the network to load weights into."""
    return copy.deepcopy(network.model)


def latency_row(latency: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a latency limit, as fields of a row of results."""
    return {
        "latency_limit_ms": latency["limit_ms"],
        "latency_ms": latency["measured_ms"],
        "latency_original_ms": latency["original_ms"],
        "latency_met": latency["met"],
        **({} if latency["predicted_ms"] is None else {"latency_predicted_ms": latency["predicted_ms"]}),
    }


def limit_of(name: str, given: Any) -> Limit:
    """One limit of a network: that of a latency, too."""
    return Limit.parse(given.limits[0] if isinstance(given, Latency) else given, name)


def label(method: str, limits: Mapping[str, Any]) -> str:
    """A network's name in tables: `lcp 50 %`."""
    words = {"macs": "", "params": " parameters", "latency": " latency"}
    parts = [
        limit_of(name, limit).label + (words[name] if len(limits) > 1 or name != "macs" else "")
        for name, limit in limits.items()
    ]
    return f"{method} {' and '.join(parts)}"


def slug(name: str) -> str:
    """A network's name as a folder's."""
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in name.replace("%", "pc")).split())


def epoch_rows(name: str, history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The epochs of a training as records for the report."""
    return [
        {"network": name, "epoch": e["epoch"], "loss": e["train_loss"], "accuracy": e.get("val_accuracy")}
        for e in history
    ]


def save_plain(run: RunFolder, model: nn.Module) -> None:
    """Weights of a network that was not pruned."""
    from safetensors.torch import save_file

    from lcprune.files import atomic_write

    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_write(run.file(WEIGHTS)) as path:
        save_file(state, path)


def _search_rows(name: str, limit: float, history: Sequence[Record]) -> list[dict[str, Any]]:
    finite = [record for record in history if record.difference < float("inf")]
    # Only LcP's first candidate is naive pruning.
    first = history[0].difference if history and name.startswith("lcp ") else float("inf")
    naive = first if first < float("inf") else None
    return [
        {
            "network": name,
            "method": name.split(" ")[0],
            "limit": limit,
            "iteration": record.iteration,
            "difference": record.difference,
            "best": record.best,
            "naive": naive,
        }
        for record in finite
    ]


def trial(name: str, seed: int) -> str:
    """A network's name with its seed, where that is not the first."""
    return name if seed == 0 else f"{name}, seed {seed}"
