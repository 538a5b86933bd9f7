"""Birds-200: what there is to run, in order of value, and the tables of it.

Kinds:

    rate           a brief transfer at one learning rate, judged on validation images
    transfer       ImageNet's network, trained on birds; the best of the brief ones says at which rate
    cuts           one search at the limit; the networks of LcP, naive and uniform pruning
    tune           one of them, tuned like the baseline
    single_filter  single-filter pruning on birds, then tuned likewise
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lcprune.report.tables import markdown
from paper.cells import Cell, percent
from paper.store import MISSING, Row, Store, accuracy

NETWORK = "torchvision:mobilenet_v2"

# The paper's section on transfer: accuracy in percent.
PUBLISHED = {"original": "80.22", "lcp": "78.34", "single_filter": "75.94 (at 50 %)"}
METHODS = {
    "uniform": "uniform",
    "naive": "naive",
    "lcp": "LcP",
    "anew": "LcP, new statistics",
    "single_filter": "single-filter pruning",
}


@dataclass(frozen=True)
class Birds:
    """How large everything is.

    Attributes:
        limit: MACs of the pruned networks.
        epochs: of every training.
        brief: epochs of a training that only compares rates.
        rates: learning rates to choose from, the paper's first; the last layer has ten times as much.
        pool, iterations, images: of a search.
        trials: of every pruned network.
        size: height and width of a network input.
        resize: shorter side of an image before it is cropped.
        batch: images per step.
        step: units that single-filter pruning removes between two rankings.
        tune_steps: steps that it tunes for in between.
    """

    limit: float = 0.51
    epochs: int = 60
    brief: int = 6
    rates: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    pool: int = 64
    iterations: int = 336
    images: int = 1000
    trials: int = 3
    size: int = 224
    resize: int = 256
    batch: int = 64
    step: int = 200
    tune_steps: int = 10


BIRDS = Birds()
TINY = Birds(
    epochs=1,
    brief=2,
    rates=(1e-4, 1e-2),
    pool=2,
    iterations=2,
    images=16,
    trials=2,
    size=32,
    resize=36,
    batch=16,
    step=3000,
    tune_steps=1,
)


def cells(scale: Birds = BIRDS) -> list[Cell]:
    """Every cell, the most valuable first."""
    return list(_ordered(scale))


def _ordered(scale: Birds) -> Iterator[Cell]:
    rates = tuple(f"birds/rate/{rate:g}" for rate in scale.rates)
    for name, rate in zip(rates, scale.rates, strict=True):
        yield _cell(name, "rate", 0, rate=rate)
    yield _cell("birds/baseline", "transfer", 0, rates)
    for trial in range(1, scale.trials + 1):
        yield _cell(f"birds/cuts/{trial}", "cuts", trial, ("birds/baseline",))
        for method in ("lcp", "naive", "uniform"):
            yield _cell(_tuned(scale, method, trial), "tune", trial, (f"birds/cuts/{trial}",), method=method)
        # The same search, whose candidates get new batch-norm statistics: as they are cut, all are at chance.
        yield _cell(f"birds/anew/{trial}", "cuts", trial, ("birds/baseline",), after="statistics")
        yield _cell(_tuned(scale, "anew", trial), "tune", trial, (f"birds/anew/{trial}",), method="anew", plan="lcp")
        if trial == 1:  # the rate that the paper prints, in full
            yield _cell("birds/printed", "transfer", 0, rate=scale.rates[0])
    name = _tuned(scale, "single_filter", 1)
    yield _cell(name, "single_filter", 1, ("birds/baseline",), method="single_filter")


def _cell(name: str, kind: str, trial: int, needs: tuple[str, ...] = (), **options: Any) -> Cell:
    return Cell(name, kind, NETWORK, trial, needs, ("birds",), options)


def _tuned(scale: Birds, method: str, trial: int) -> str:
    return f"birds/tune/{method}-{percent(scale.limit)}/{trial}"


# -- tables ------------------------------------------------------------------------------------------------


def table_birds(store: Store, scale: Birds = BIRDS) -> str:
    """Accuracy on test images before and after tuning, the paper's beside ours."""
    header = ["network", "MACs", "before tuning", "after", "change from the baseline", "paper"]
    lines, found = [], set()
    names = store.again("birds")
    for birds in names:
        whole = store.rows("results", f"{birds}/baseline")
        first = birds == "birds"
        words = "MobileNetV2 on birds" + ("" if first else ", second baseline")
        lines.append([words, *_macs(whole), "", accuracy(whole), "", PUBLISHED["original"] if first else ""])
        for method, words in METHODS.items():
            rows, change = store.rows("results", f"{birds}/tune/{method}-{percent(scale.limit)}/"), MISSING
            if rows and whole:
                found.add(method)
                mean = sum(row["accuracy"] for row in rows) / len(rows)
                change = f"{100 * (mean - whole[0]['accuracy']):+.2f}"
            elif birds != names[-1] or method in found:  # what neither has stands once, at the end
                continue
            figures = [accuracy(rows, "accuracy_before"), accuracy(rows), change]
            lines.append([words, *_macs(rows), *figures, PUBLISHED.get(method, "")])
    return markdown(header, lines)


def table_rates(store: Store) -> str:
    """Learning rates: brief trainings on validation images, and those in full."""
    chosen = {row["lr"] for row in store.rows("results", "birds/baseline")}
    lines = []
    for row in sorted(store.rows("results", "birds/rate/"), key=lambda row: row["lr"]):
        whole = [r for r in store.rows("results", "birds/baseline", "birds/printed") if r["lr"] == row["lr"]]
        rates = f"{row['lr']:g}, last layer {row['head_lr']:g}" + (" (chosen)" if row["lr"] in chosen else "")
        figures = [
            accuracy([row], "val_accuracy"),
            accuracy(whole[:1], "val_accuracy"),
            accuracy(whole[:1], "accuracy"),
        ]
        lines.append([rates, *figures])
    header = ["learning rate", "brief: validation", "in full: validation", "in full: test"]
    return markdown(header, lines or [[MISSING] * 4])


def _macs(rows: Sequence[Row]) -> list[str]:
    return [f"{rows[0]['macs'] / 1e6:.1f} M ({100 * rows[0]['macs_share']:.1f} %)" if rows else MISSING]
