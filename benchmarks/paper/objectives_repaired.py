"""What the library's objective, the loss after a quick repair, says of selections that were tuned.

    python benchmarks/paper/objectives_repaired.py judge --data cifar10:PATH               # some minutes on two cores
    python benchmarks/paper/objectives_repaired.py judge --network mobilenetv2 --data cifar10:PATH
    python benchmarks/paper/objectives_repaired.py tune --network mobilenetv2 --data cifar10:PATH
    python benchmarks/paper/objectives_repaired.py show                # the tables of docs/results/objective.md

Selections that need no search (naive, uniform and random compensations) are judged as a search judges its candidates: a
part of the images repairs them, the others judge. What is found goes to results/objective-repaired.json. What tuning
made of ResNet-56's is in results/objective.json; they are made again and checked against it. `tune` tunes MobileNetV2's
as one fleet, for as many epochs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import lcprune  # noqa: E402
from lcprune import tune  # noqa: E402
from lcprune.batches import collate, draw  # noqa: E402
from lcprune.evaluate import answered, make_evaluator, measured, parted  # noqa: E402
from lcprune.files import write_json  # noqa: E402
from paper.cells import percent, registry  # noqa: E402
from paper.objectives import OBJECTIVES, correlate, select  # noqa: E402
from paper.scale import PAPER  # noqa: E402
from paper.store import RESULTS, Store  # noqa: E402
from paper.work import Bench  # noqa: E402

OUT = RESULTS / "objective-repaired.json"
OTHER = dataclasses.replace(
    PAPER,
    network="mobilenetv2",
    weights=Path(__file__).parent / "baselines" / "mobilenetv2-0.safetensors",
    studied=(0.2,),
    others={},
)
SCALES = {scale.network: scale for scale in (PAPER, OTHER)}
SHOWN = ("cut loss", "recalibrated loss", "repaired loss", "repaired distance", "removed", "params")
_IMAGES_SEED = 0  # as the other objectives


def judge(options: argparse.Namespace) -> None:
    """Judge every selection that needs no search."""
    scale = SCALES[options.network]
    stored = {row["cell"]: row for row in Store().rows("objective", f"{options.network}/objective/")}
    bench = Bench(options.data, Path(), scale, "cpu")
    graph = bench.graph(scale.network)
    samples = draw(bench.images(_IMAGES_SEED), scale.images, _IMAGES_SEED)
    how = lcprune.Evaluation()
    quick = measured(graph, collate(parted(samples, how)[0], 128, "cpu"))
    known, divergence = answered(graph.model, samples, True)
    judges = {
        "repaired loss": make_evaluator(graph, samples, how, quick),
        "repaired distance": make_evaluator(graph, known, lcprune.Evaluation(loss_fn=divergence), quick),
    }
    if not stored:
        judges["cut loss"] = make_evaluator(graph, samples, lcprune.Evaluation(after="cut"))
        judges["recalibrated loss"] = make_evaluator(graph, samples, lcprune.Evaluation(after="statistics"))
    scores = lcprune.metrics.score(graph, "l2")
    found = read()
    for cell in registry(scale).values():
        if cell.kind != "objective" or "source" in cell.options or "repaired loss" in found.get(cell.name, {}):
            continue
        plan = select(bench, cell)
        kept = [list(plan.kept.get(group.name, range(group.size))) for group in graph.groups]
        removed = sum(float(own.sum() - own[units].sum()) for own, units in zip(scores, kept, strict=True))
        row: dict[str, Any] = {name: judge.loss(kept) for name, judge in judges.items()}
        if stored:
            before = stored[cell.name]
            if plan.macs != before["macs"] or not math.isclose(removed, before["removed"], rel_tol=1e-3):
                print(f"{cell.name} is not what was tuned: {plan.macs} MACs, {removed:.4f} removed", flush=True)
                continue
        else:
            row |= {"limit": cell.options["limit"], "method": cell.options["selection"], "macs": plan.macs}
            row |= {"params": plan.params, "removed": removed, "full loss": judges["cut loss"].full_loss()}
        found[cell.name] = found.get(cell.name, {}) | row
        print(cell.name, row, flush=True)
        write_json(OUT, found, indent=1)


def tune_all(options: argparse.Namespace) -> None:
    """What a brief tuning makes of the selections, as one fleet: the same order and crops for all."""
    scale = SCALES[options.network]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench = Bench(options.data, Path(), scale, device)
    cells = [c for c in registry(scale).values() if c.kind == "objective" and "source" not in c.options]
    recipe = tune.recipe("finetune", epochs=scale.brief, eval_every=scale.brief, seed=1, **bench.training)
    plans = [select(bench, cell) for cell in cells]
    results = tune.fit_fleet(bench.network(scale.network), plans, bench.dataset, recipe, device=bench.device)
    found = read()
    for cell, plan, result in zip(cells, plans, results, strict=True):
        row = bench.judge(result.model, "val", "val_") | {"macs": plan.macs, "epochs": scale.brief}
        print(cell.name, row, flush=True)
        found[cell.name] = found.get(cell.name, {}) | row
    write_json(OUT, found, indent=1)


def read() -> dict[str, dict[str, Any]]:
    """What was found so far, by cell."""
    return dict(json.loads(OUT.read_text(encoding="utf-8"))) if OUT.is_file() else {}


def show(options: argparse.Namespace) -> None:
    """Rank correlations with the tuned network, all of the same selections."""
    found = read()
    stored = {row["cell"]: row for row in Store().rows("objective")}
    for network in SCALES:
        every = [stored.get(name, {}) | row for name, row in found.items() if name.startswith(f"{network}/")]
        rows = [row for row in every if "val_loss" in row and "repaired loss" in row]
        print(f"\n{network}\n\n| MACs | selections | objective | validation loss | validation accuracy |")
        print("|---|---|---|---|---|")
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
    parser.add_argument("what", choices=["judge", "tune", "show"])
    parser.add_argument("--network", default=PAPER.network, choices=SCALES)
    parser.add_argument("--data", help="CIFAR-10, as cifar10:PATH")
    options = parser.parse_args()
    {"judge": judge, "tune": tune_all, "show": show}[options.what](options)


if __name__ == "__main__":
    main()
