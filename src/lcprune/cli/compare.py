"""`lcprune compare`: several methods at the same limits, with the same tuning and several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from lcprune.cli import options as o
from lcprune.files import atomic_write
from lcprune.limit import Limit
from lcprune.runs import RunFolder

if TYPE_CHECKING:
    from lcprune.study import Study


@o.also(o.STUDY)
def compare(
    ctx: typer.Context,
    model: o.Model,
    macs: o.ManyMacs = o.HALF_AND_QUARTER,
    methods: o.Methods = o.THREE_METHODS,
    epochs: o.Epochs = None,
    seeds: o.Seeds = 3,
) -> None:
    """Compare methods at the same limits: mean and standard deviation, as Markdown, CSV and LaTeX.

    Examples:

      lcprune compare runs/train --macs 50%,25% --seeds 3 --epochs 20

      lcprune compare resnet56 --weights resnet56.safetensors --data cifar10:PATH --methods naive,lcp
    """
    from lcprune.cli.studies import open_study

    with open_study(ctx, methods, macs, "a comparison", whole=True) as study:
        grid(study, methods, macs, seeds)
        write_tables(study.run)


def grid(study: Study, methods: Sequence[str], macs: Sequence[Limit], seeds: int = 1) -> None:
    """Every method at every limit with every seed."""
    from lcprune.study import ORIGINAL, NetworkJob, run_jobs

    trials = [
        NetworkJob(method, {"macs": limit}, seed) for limit in macs for method in methods for seed in range(seeds)
    ]
    run_jobs(study, [NetworkJob(ORIGINAL), *trials])


def write_tables(run: RunFolder) -> None:
    """The results as `tables/results.md`, `.csv` (every trial) and `.tex`."""
    from lcprune.report.tables import csv_text, latex, markdown, result_table

    rows = run.records("results")
    header, cells = result_table(rows)
    caption = f"{run.settings.get('model')} on {run.settings.get('data')}"
    texts = {
        "md": markdown(header, cells),
        "csv": csv_text(rows),
        "tex": latex(header, cells, caption),
    }
    for ending, text in texts.items():
        with atomic_write(run.file("tables", f"results.{ending}")) as path:
            path.write_text(text, encoding="utf-8")
