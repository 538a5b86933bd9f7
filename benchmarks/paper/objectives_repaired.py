"""What the library's objective, the loss after a quick repair, says of selections that were tuned before.

    python benchmarks/paper/objectives_repaired.py --data cifar10:PATH     # some minutes on two cores
    python benchmarks/paper/objectives_repaired.py --show                  # the table of docs/results/objective.md

Selections that need no search (naive, uniform and random compensations) are made again, checked against the record, and
judged as a search judges its candidates: a part of the images repairs them, the others judge. What tuning made of them
is in results/objective.json; what is found goes to results/objective-repaired.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import lcprune  # noqa: E402
from lcprune.batches import collate, draw  # noqa: E402
from lcprune.evaluate import answered, make_evaluator, measured, parted  # noqa: E402
from lcprune.files import write_json  # noqa: E402
from paper.cells import percent, registry  # noqa: E402
from paper.objectives import OBJECTIVES, correlate, select  # noqa: E402
from paper.scale import PAPER  # noqa: E402
from paper.store import RESULTS, Store  # noqa: E402
from paper.work import Bench  # noqa: E402

OUT = RESULTS / "objective-repaired.json"
SHOWN = ("cut loss", "recalibrated loss", "repaired loss", "repaired distance", "removed", "params")
_IMAGES_SEED = 0  # as the other objectives


def measure(given: str) -> None:
    """Judge every selection that can be made again."""
    stored = {row["cell"]: row for row in Store().rows("objective", "resnet56/objective/")}
    cells = [cell for cell in registry(PAPER).values() if cell.name in stored and "source" not in cell.options]
    bench = Bench(given, Path(), PAPER, "cpu")
    graph = bench.graph(PAPER.network)
    samples = draw(bench.images(_IMAGES_SEED), PAPER.images, _IMAGES_SEED)
    how = lcprune.Evaluation()
    quick = measured(graph, collate(parted(samples, how)[0], 128, "cpu"))
    known, divergence = answered(graph.model, samples, True)
    judges = {
        "repaired loss": make_evaluator(graph, samples, how, quick),
        "repaired distance": make_evaluator(graph, known, lcprune.Evaluation(loss_fn=divergence), quick),
    }
    scores = lcprune.metrics.score(graph, "l2")
    found: dict[str, Any] = {}
    for cell in cells:
        plan, row = select(bench, cell), stored[cell.name]
        kept = [list(plan.kept.get(group.name, range(group.size))) for group in graph.groups]
        removed = sum(float(own.sum() - own[units].sum()) for own, units in zip(scores, kept, strict=True))
        if plan.macs != row["macs"] or not math.isclose(removed, row["removed"], rel_tol=1e-3):
            print(f"{cell.name} is not what was tuned: {plan.macs} MACs, {removed:.4f} removed", flush=True)
            continue
        found[cell.name] = {name: judge.loss(kept) for name, judge in judges.items()}
        print(cell.name, found[cell.name], flush=True)
        write_json(OUT, found, indent=1)


def show() -> None:
    """Rank correlations with the tuned network, all of the same selections."""
    found = json.loads(OUT.read_text(encoding="utf-8"))
    rows = [row | found[row["cell"]] for row in Store().rows("objective") if row["cell"] in found]
    print("| MACs | selections | objective | validation loss | validation accuracy |\n|---|---|---|---|---|")
    for limit in sorted({row["limit"] for row in rows}, reverse=True):
        here = [row for row in rows if row["limit"] == limit]
        sensible = [row for row in here if not row["method"].startswith(("random-3", "uniform"))]
        for words, some in (("all", here), ("sensible", sensible)):
            for objective in SHOWN:
                both = [correlate(some, objective, outcome) for outcome in ("val_loss", "val_accuracy")]
                cells = " | ".join(f"{one['rho']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}]" for one in both)
                print(f"| {percent(limit)} % | {words} ({len(some)}) | {OBJECTIVES[objective]} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="CIFAR-10, as cifar10:PATH")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if not options.show:
        measure(options.data)
    show()


if __name__ == "__main__":
    main()
