"""The methods beside LcP in figure 2: single-filter pruning and MorphNet.

They change weights while they choose units, so a cut network is kept with its own weights; tuning begins with these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lcprune
from lcprune.report.tables import markdown
from lcprune.runs import RunFolder
from paper.cells import Cell, percent
from paper.published import of_paper
from paper.store import Store, accuracy

if TYPE_CHECKING:
    from paper.work import Bench

WORDS = {"single_filter": "single-filter pruning", "morphnet": "MorphNet"}
_PAPERS = {"single_filter": "single filters", "morphnet": "MorphNet"}


def cut(bench: Bench, cell: Cell, run: RunFolder) -> dict[str, Any]:
    """Cut a network by one of the methods; judged on validation images."""
    options = cell.options
    method, limit = options["method"], options["limit"]
    found = lcprune.prune(
        bench.graph(cell.network),
        repair="none",
        macs=limit,
        method=lcprune.methods.make(method, options["settings"]),
        data=bench.evaluation(bench.images(cell.trial)),
        multiple_of=1,
        seed=cell.trial,
        run=lcprune.Job(run.file("cut"), resume=True),
        progress=False,
    )
    found.plan.save(run.file("plans", f"{method}-{percent(limit)}.json"))
    lcprune.save(run.path, found.model, found.plan)
    row = bench.row(cell, method, limit, "macs", found.plan)
    judged = bench.judge(found.model.to(bench.device).eval(), "val", "val_")
    if not run.records("results"):
        run.add("results", row | {f"{name}_before": value for name, value in judged.items()})
    price = {name: found.plan.meta[name] for name in ("rounds", "trainings") if name in found.plan.meta}
    return {"settings": options["settings"], **price}


def table_rivals(store: Store) -> str:
    """Other methods before (on validation images) and after tuning (on test images)."""
    lines = []
    for method, words in WORDS.items():
        [(left, found)] = of_paper(_PAPERS[method]).items()
        for limit in sorted(store.scale.rival_limits, reverse=True):
            name = f"{method}-{percent(limit)}"
            before = store.rows("results", f"{store.network}/method/{name}/")
            tuned = store.rows("results", f"{store.network}/rival/{name}/")
            figures = [accuracy(before, "val_accuracy_before"), accuracy(tuned)]
            lines.append([words, f"{percent(limit)} %", *figures, f"{found} at {100 * left:.1f} %"])
    return markdown(["method", "MACs", "before tuning, validation", "tuned, test", "paper"], lines)
