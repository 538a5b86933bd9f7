"""What there is to run, in order of value: one cell is one run folder.

A cell is small enough to be finished, or taken up again, within a few minutes. Tables and figures are made from
whatever cells exist. Kinds:

    train      a baseline from scratch
    frontier   one search, and the networks that it gives at several limits, judged before tuning
    metric     how far the loss moves without a unit, beside what metrics say
    tune       one of a frontier's networks, fine-tuned and judged
    objective  one selection: what cheap objectives say of it, and what a brief tuning makes of it
    method     a network cut by another method, with the weights that the method gave it
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paper.scale import PAPER, Scale

DONE = "done.json"  # in a cell's folder: the cell is complete


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Attributes:
        name: also its folder.
        kind: which function of `work.py` does it.
        network: what it is about.
        trial: counts from 1; the seed of drawn images, search and tuning.
        needs: cells that must be done before.
        shown: tables and figures that use it, e.g. "table-1".
        options: the rest, as plain values.
    """

    name: str
    kind: str
    network: str
    trial: int = 1
    needs: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def registry(scale: Scale = PAPER) -> dict[str, Cell]:
    """Every cell by name, the most valuable first."""
    made: dict[str, Cell] = {}
    for cell in _ordered(scale):
        assert cell.name not in made, cell.name
        made[cell.name] = cell
    return made


def percent(share: float) -> str:
    """A limit as it is written in names: 0.5 is "50", 0.224 is "22.4"."""
    return f"{100 * share:.1f}".removesuffix(".0")


def chosen(cells: dict[str, Cell], patterns: Sequence[str], shown: Sequence[str] = ()) -> list[Cell]:
    """The cells that match a pattern or are shown in a table or figure, with everything they need.

    Args:
        cells: what `registry` gave.
        patterns: of names, e.g. "resnet56/tune/*"; none means all.
        shown: tables and figures, e.g. "table-1"; none means all.
    """
    wanted = {
        name
        for name, cell in cells.items()
        if (not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns))
        and (not shown or set(shown) & set(cell.shown))
    }
    for name in reversed(cells):  # what a cell needs stands before it
        if name in wanted:
            wanted.update(cells[name].needs)
    return [cell for name, cell in cells.items() if name in wanted]


# -- the cells ---------------------------------------------------------------------------------------------


def _ordered(scale: Scale) -> Iterator[Cell]:
    yield from _before_tuning(scale)
    for trial in range(1, scale.trials + 1):
        for limit in scale.limits:
            for method in ("sweep", "naive", "uniform"):
                yield _tune(scale, method, limit, trial)
    yield from _per_limit(scale, 1)
    yield from _objectives(scale)
    yield from _best(scale)
    for other, limits in scale.others.items():
        yield from _other(scale, other, limits, 1)
    for trial in range(1, scale.trials + 1):
        yield from _anew(scale, trial)
    yield from _in_full(scale)
    yield from _rivals(scale)
    for trial in range(2, scale.trials + 1):
        yield from _per_limit(scale, trial)
    for limit in scale.limits:
        for method in ("lcp", "naive", "uniform"):
            yield _tune(scale, method, limit, 1, resource="params")
    for trial in range(1, scale.trials + 1):
        for limit in scale.limits:
            if limit != min(scale.limits):
                yield _tune(scale, "lcp", limit, trial)
    for trial in range(2, scale.trials + 1):
        for other, limits in scale.others.items():
            yield from _other(scale, other, limits, trial)


def _per_limit(scale: Scale, trial: int) -> Iterator[Cell]:
    """A search for each limit, tuned."""
    for limit in scale.limits:
        if limit == min(scale.limits):  # there, the search at the tightest limit is the search for the limit
            yield _tune(scale, "lcp", limit, trial)
            continue
        if trial > 1:  # the first ones are among those before tuning
            yield _each(scale, limit, trial)
        yield _tune(scale, "each", limit, trial)


def _before_tuning(scale: Scale) -> Iterator[Cell]:
    """Searches and cuts: seconds each, so they go first."""
    shown = ("table-1", "figure-2", "figure-3", "figure-4", "figure-5", "figure-7", "figure-8")
    yield _frontier(scale, 1, shown, ("lcp", "naive", "uniform"))
    for trial in range(1, scale.trials + 1):
        yield _sweep(scale, trial)
    yield Cell(f"{scale.network}/metric", "metric", scale.network, shown=("figure-1",), options={"units": scale.units})
    for limit in scale.limits:
        if limit != min(scale.limits):
            yield _each(scale, limit, 1)
    for trial in range(2, scale.trials + 1):
        yield _frontier(scale, trial, ("table-1", "figure-2", "figure-4"), ("lcp",))
    yield _sweep(scale, 1, "params", ("figure-2",), ("lcp", "naive", "uniform"), resource="params")
    for metric in ("l1", "taylor"):
        yield _sweep(scale, 1, metric, ("figure-7",), ("lcp", "naive"), metric=metric)
    for floor in (0.0, 0.2, 0.3):
        yield _sweep(scale, 1, f"floor-{percent(floor)}", ("figure-8",), ("lcp", "naive"), min_keep=floor)


def _sweep(
    scale: Scale,
    trial: int,
    kind: str = "l2",
    shown: Sequence[str] = (),
    methods: Sequence[str] = ("lcp",),
    **more: Any,
) -> Cell:
    """One search shared by all limits: what `lcprune.pareto` does."""
    options = {"limits": list(scale.limits), "methods": list(methods), "learn": "sweep", **more}
    shown = tuple(shown) or ("table-1", "figure-2", "figure-4", "figure-7", "figure-8")
    return Cell(f"{scale.network}/sweep/{kind}/{trial}", "frontier", scale.network, trial, shown=shown, options=options)


def _frontier(scale: Scale, trial: int, shown: Iterable[str], methods: Sequence[str]) -> Cell:
    """One search at the tightest limit, used for all."""
    options = {"limits": list(scale.limits), "methods": list(methods), "learn": "tightest"}
    full = f"{scale.network}/frontier/l2/{trial}"
    return Cell(full, "frontier", scale.network, trial, shown=tuple(shown), options=options)


def _each(scale: Scale, limit: float, trial: int, name: str = "each", **search: Any) -> Cell:
    """A search at one limit, for that limit alone."""
    options = {"limits": [limit], "methods": ["lcp"], **({"search": search} if search else {})}
    shown = ("table-1", "figure-4", "figure-5") if name == "each" else ("best",)
    full = f"{scale.network}/{name}/{percent(limit)}/{trial}"
    return Cell(full, "frontier", scale.network, trial, shown=shown, options=options)


def _tune(scale: Scale, method: str, limit: float, trial: int, resource: str = "macs") -> Cell:
    """A network of table 1. Naive and uniform networks are the same in every trial; only their tuning differs."""
    if method == "each":
        source = f"{scale.network}/each/{percent(limit)}/{trial}"
    elif method == "sweep":
        source = f"{scale.network}/sweep/l2/{trial}"
    elif resource == "params":
        source = f"{scale.network}/sweep/params/1"
    else:
        source = f"{scale.network}/frontier/l2/{trial if method == 'lcp' else 1}"
    shown = ("table-1", "figure-2") if resource == "macs" else ("figure-2",)
    name = f"{scale.network}/tune/{method}-{percent(limit)}{'' if resource == 'macs' else '-params'}/{trial}"
    cut = "lcp" if method in ("each", "sweep") else method
    options = {"plan": f"{cut}-{percent(limit)}", "method": method, "limit": limit, "resource": resource}
    return Cell(name, "tune", scale.network, trial, (source,), shown, {**options, "recipe": {"epochs": scale.epochs}})


def _objectives(scale: Scale) -> Iterator[Cell]:
    for limit in scale.studied:
        for name, options in _selections(scale, limit):
            source = options.get("source")
            yield Cell(
                f"{scale.network}/objective/{percent(limit)}/{name}",
                "objective",
                scale.network,
                needs=(source,) if source else (),
                shown=("objectives",),
                options={"limit": limit, "selection": name, **options},
            )


def _in_full(scale: Scale) -> Iterator[Cell]:
    """Some selections tuned in full: what the brief tuning says is worth what it says of the long one."""
    for limit in scale.studied:
        for name in ("naive", "uniform", "lcp-1", *(f"random-{spread:g}-1" for spread in scale.spreads)):
            if limit in scale.limits and not name.startswith("random"):
                continue  # tuned for table 1 already
            study = f"{scale.network}/objective/{percent(limit)}/{name}"
            options = {"plan": "plan", "method": name, "limit": limit, "resource": "macs"}
            yield Cell(
                f"{scale.network}/full/{percent(limit)}-{name}/1",
                "tune",
                scale.network,
                needs=(study,),
                shown=("objectives",),
                options={**options, "recipe": {"epochs": scale.epochs}, "test": False},
            )


def _selections(scale: Scale, limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ways to cut: by name, and where the compensation comes from. Searches at other limits lend theirs."""
    near = min(scale.limits, key=lambda other: (round(abs(other - limit), 6), -other))
    plan, tightest = f"lcp-{percent(near)}", f"{scale.network}/frontier/l2/1"
    each = tightest if near == min(scale.limits) else f"{scale.network}/each/{percent(near)}/1"
    yield "naive", {}
    yield "uniform", {}
    for trial in range(1, scale.trials + 1):
        yield f"lcp-{trial}", {"source": f"{scale.network}/sweep/l2/{trial}", "plan": plan}
    yield "each", {"source": each, "plan": plan}
    if each != tightest:
        yield "tightest", {"source": tightest, "plan": plan}
    for iteration in scale.replayed:
        yield f"candidate-{iteration}", {"source": each, "iteration": iteration}
    for spread in scale.spreads:
        for draw in range(1, scale.draws + 1):
            yield f"random-{spread:g}-{draw}", {"spread": spread, "seed": 1000 * draw + round(10 * spread)}


def _best(scale: Scale) -> Iterator[Cell]:
    """What can be added to the paper's recipe at half the MACs; judged on validation images only."""
    limit, network = 0.5, scale.network
    better = {"epochs": scale.long, "lr_decay": "cosine", "lr": 0.05}
    distil = {"distill": 0.5, "temperature": 4.0}
    sources = {
        "sweep": (f"{network}/sweep/l2/1", "lcp"),
        "naive": (f"{network}/frontier/l2/1", "naive"),
    }
    if limit != min(scale.limits):
        sources["each"] = (f"{network}/each/{percent(limit)}/1", "lcp")
    for name, search in (("affine", {"form": "affine"}), ("recalibrated", {"after": "statistics"})):
        made = _each(scale, limit, 1, name, **search)
        yield made
        sources[name] = (made.name, "lcp")
    tunings = {"": {"epochs": scale.epochs}, "-long": better, "-long-distilled": {**better, **distil}}
    for words, recipe in tunings.items():
        for method, (source, plan) in sources.items():
            if words == "" and method in ("sweep", "naive", "each"):
                continue  # tuned for table 1 already
            name = f"{method}{words}"
            options = {"plan": f"{plan}-{percent(limit)}", "method": name, "limit": limit, "resource": "macs"}
            options.update(recipe=recipe, test=False)
            yield Cell(f"{network}/best/{name}/1", "tune", network, 1, (source,), ("best",), options)
    # The best of them on validation images, for longer.
    source, plan = sources["sweep"]
    name, recipe = "sweep-longest-distilled", {**better, **distil, "epochs": scale.longest}
    options = {"plan": f"{plan}-{percent(limit)}", "method": name, "limit": limit, "resource": "macs"}
    options |= {"recipe": recipe, "test": False}
    yield Cell(f"{network}/best/{name}/1", "tune", network, 1, (source,), ("best",), options)


def _anew(scale: Scale, trial: int) -> Iterator[Cell]:
    """Searches at limits where cut networks are at chance, whose candidates get new batch-norm statistics; tuned."""
    for network, limits in {scale.network: scale.tight, **scale.others}.items():
        needs = () if network == scale.network else (f"{network}/baseline",)
        for limit in limits:
            search, plan = f"{network}/anew/{percent(limit)}/{trial}", f"lcp-{percent(limit)}"
            options: dict[str, Any] = {"limits": [limit], "methods": ["lcp"], "search": {"after": "statistics"}}
            yield Cell(search, "frontier", network, trial, needs, ("anew",), options)
            options = {"plan": plan, "method": "anew", "limit": limit, "resource": "macs"}
            options["recipe"] = {"epochs": scale.epochs}
            name = f"{network}/tune/anew-{percent(limit)}/{trial}"
            yield Cell(name, "tune", network, trial, (search,), ("anew",), options)


def _rivals(scale: Scale) -> Iterator[Cell]:
    """Other methods: a cut each, tuned from the weights that the method left."""
    for limit in scale.rival_limits:
        for method, settings in scale.rivals.items():
            name = f"{method}-{percent(limit)}"
            source, options = f"{scale.network}/method/{name}/1", {"method": method, "limit": limit}
            yield Cell(source, "method", scale.network, 1, (), ("figure-2",), {**options, "settings": settings})
            options |= {"plan": name, "resource": "macs", "recipe": {"epochs": scale.epochs}}
            yield Cell(f"{scale.network}/rival/{name}/1", "tune", scale.network, 1, (source,), ("figure-2",), options)


def _other(scale: Scale, network: str, limits: tuple[float, ...], trial: int) -> Iterator[Cell]:
    shown = ("table-1",) if network == "vgg16" else ("figure-6",)
    if trial == 1:
        # The rate that is usual for this VGG: its three linear layers have no normalisation to hold 0.1.
        recipe = {"epochs": scale.from_scratch, **({"lr": 0.05} if network == "vgg16" else {})}
        yield Cell(f"{network}/baseline", "train", network, 0, shown=shown, options={"recipe": recipe})
    methods = ["lcp", "naive", "uniform"] if trial == 1 else ["lcp"]
    search, options = f"{network}/sweep/l2/{trial}", {"limits": list(limits), "methods": methods, "learn": "sweep"}
    yield Cell(search, "frontier", network, trial, (f"{network}/baseline",), shown, options)
    for limit in limits:
        for method in ("lcp", "naive", "uniform"):
            source = search if method == "lcp" else f"{network}/sweep/l2/1"
            options = {"plan": f"{method}-{percent(limit)}", "method": method, "limit": limit, "resource": "macs"}
            options["recipe"] = {"epochs": scale.epochs}
            name = f"{network}/tune/{method}-{percent(limit)}/{trial}"
            yield Cell(name, "tune", network, trial, (source,), shown, options)
