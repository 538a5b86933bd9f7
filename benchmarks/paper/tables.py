"""Tables and figures of docs/results.md and docs/results/, from whatever cells exist.

    python benchmarks/paper/tables.py --runs runs/paper     # take over finished cells, then make everything
    python benchmarks/paper/tables.py --runs runs/2 --again # the same, of baselines that were trained a second time
    python benchmarks/paper/tables.py                       # from the committed JSON alone
    python benchmarks/paper/tables.py --show table-1        # one of them: printed and, if it is a figure, drawn

Numbers go to benchmarks/paper/results/, tables between the marks of these pages, figures to docs/images/paper/.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

from lcprune.files import atomic_write  # noqa: E402
from lcprune.report.tables import markdown  # noqa: E402
from paper import birds_cells, claims, objectives  # noqa: E402
from paper.cells import chosen, percent, registry  # noqa: E402
from paper.published import of_paper, table_published, table_resnet50  # noqa: E402
from paper.resnet50_latency import table_3  # noqa: E402
from paper.rivals import table_rivals  # noqa: E402
from paper.scale import PAPER, TINY  # noqa: E402
from paper.store import AGAIN, MISSING, RESULTS, Store, accuracy, before, tuned  # noqa: E402

DOCS = BENCHMARKS.parent / "docs"

METHODS = {
    "uniform": "uniform",
    "naive": "naive",
    "sweep": "LcP, one shared search",
    "lcp": "LcP, learned at the tightest limit",
    "each": "LcP, a search per limit",
}


# -- tables ------------------------------------------------------------------------------------------------


def table_1(store: Store) -> str:
    """CIFAR-10, ResNet-56: accuracy after tuning, the paper's beside ours."""
    header = ["MACs", *METHODS.values(), "shared - naive", "paper: naive", "paper: LcP"]
    lines = []
    for limit in sorted(store.scale.limits, reverse=True):
        rows = {method: tuned(store, store.network, method, limit) for method in METHODS}
        both = zip(rows["sweep"], rows["naive"], strict=False)
        gaps = [100 * (ours["accuracy"] - naive["accuracy"]) for ours, naive in both if ours["seed"] == naive["seed"]]
        gap = f"{statistics.mean(gaps):+.2f}" if gaps else MISSING
        published = [of_paper(method).get(limit, "") for method in ("naive", "LcP")]
        lines.append([f"{percent(limit)} %", *(accuracy(rows[method]) for method in METHODS), gap, *published])
    return markdown(header, lines)


def table_before(store: Store) -> str:
    """The same networks before tuning."""
    lines = [
        [
            f"{percent(limit)} %",
            *(accuracy(before(store, store.network, method, limit), "accuracy_before") for method in METHODS),
        ]
        for limit in sorted(store.scale.limits, reverse=True)
    ]
    return markdown(["MACs", *METHODS.values()], lines)


def table_others(store: Store) -> str:
    """VGG and MobileNetV2."""
    lines = []
    for network, limits in store.scale.others.items():
        for name in store.again(network):
            whole = accuracy(store.rows("results", f"{name}/baseline"))
            for limit in limits:
                cells = [accuracy(tuned(store, name, method, limit)) for method in ("uniform", "naive", "lcp")]
                lines.append([_words(name), whole, f"{percent(limit)} %", *cells])
    return markdown(["network", "baseline", "MACs", "uniform", "naive", "LcP"], lines)


def table_anew(store: Store) -> str:
    """Searches whose candidates get new batch-norm statistics, where all cut networks are at chance."""
    lines = []
    for network, limits in {store.network: store.scale.tight, **store.scale.others}.items():
        methods = ("uniform", "naive", "each" if network == store.network else "lcp", "anew")
        for name in store.again(network):
            for limit in limits:
                cells = [accuracy(tuned(store, name, method, limit)) for method in methods]
                lines.append([_words(name), f"{percent(limit)} %", *cells])
    return markdown(["network", "MACs", "uniform", "naive", "LcP, loss as cut", "LcP, new statistics"], lines)


def _words(network: str) -> str:
    return f"{network.removesuffix(AGAIN)}, second baseline" if network.endswith(AGAIN) else network


def table_params(store: Store) -> str:
    """Limits on parameters, before and after tuning."""
    methods = ("uniform", "naive", "lcp")
    lines = []
    for limit in sorted(store.scale.limits, reverse=True):
        cut = [accuracy(before(store, store.network, m, limit, "params"), "accuracy_before") for m in methods]
        done = [accuracy(tuned(store, store.network, m, limit, "params")) for m in methods]
        lines.append([f"{percent(limit)} %", *cut, *done])
    header = [f"{METHODS[m].split(',')[0]}, {when}" for when in ("before", "tuned") for m in methods]
    return markdown(["parameters", *header], lines)


def _ablation(store: Store, kinds: dict[str, str]) -> str:
    lines = [
        [words, METHODS[method].split(",")[0]]
        + [
            accuracy(
                [r for r in before(store, store.network, method, limit, name) if r["seed"] == 1], "accuracy_before"
            )
            for limit in sorted(store.scale.limits, reverse=True)
        ]
        for name, words in kinds.items()
        for method in ("naive", "sweep")
    ]
    return markdown(["", "", *(f"{percent(limit)} %" for limit in sorted(store.scale.limits, reverse=True))], lines)


def table_metrics(store: Store) -> str:
    """Metrics with and without compensation, before tuning."""
    return _ablation(store, {"l1": "l1", "l2": "l2", "taylor": "Taylor"})


def table_floors(store: Store) -> str:
    """Floors, before tuning."""
    floors = {"floor-0": "at least one unit", "l2": "10 %", "floor-20": "20 %", "floor-30": "30 %"}
    return _ablation(store, floors)


def table_searches(store: Store) -> str:
    """What searches cost and gain: means over trials, a column for each limit."""
    found: dict[str, dict[str, list[tuple[int, float, float, float]]]] = {}  # search -> limit -> trials
    for name, cell in sorted(store.cells.items()):
        for limit, seconds in cell.get("search", {}).get("seconds", {}).items():
            own = (row for row in store.rows("search", name) if row["cell"] == name)
            if curve := [row for row in own if percent(row["limit"]) == limit]:
                search = re.sub(r"(/[\d.]+)+$", "", name)  # without its limit and its trial
                trial = len(curve), curve[0]["naive"], curve[-1]["best"], seconds
                found.setdefault(search, {}).setdefault(limit, []).append(trial)
    limits = sorted({limit for trials in found.values() for limit in trials}, key=float, reverse=True)
    lines = []
    for search, trials in found.items():
        means = {limit: [statistics.mean(column) for column in zip(*own, strict=True)] for limit, own in trials.items()}
        cells = [f"{means[at][1]:.3f} → {means[at][2]:.3f}" if at in means else "" for at in limits]
        took = [seconds for own in trials.values() for *_, seconds in own]
        one = next(iter(means))
        spent = f"{min(took):.0f} to {max(took):.0f} s" if len(took) > 1 else f"{took[0]:.0f} s"
        lines.append([search, str(len(trials[one])), f"{means[one][0]:.0f}", *cells, spent])
    return markdown(["search", "trials", "candidates", *(f"{at} %" for at in limits), "time, shared GPU"], lines)


def table_objectives(store: Store) -> str:
    """Rank correlations of objectives with what a brief tuning gives."""
    rows = store.rows("objective")
    lines = []
    for row in objectives.analyse(rows):
        cells = [
            f"{row[f'{name}_rho']:+.2f} [{row[f'{name}_low']:+.2f}, {row[f'{name}_high']:+.2f}]"
            if row[f"{name}_rho"] is not None and row[f"{name}_low"] is not None
            else MISSING
            for name in ("loss", "accuracy")
        ]
        where = [f"{percent(row['limit'])} %", f"{row['set']} ({row['loss_selections']})", row["words"]]
        lines.append([*where, *cells, f"{row['seconds']:.1f}" if row["seconds"] is not None else ""])
    return markdown(["MACs", "selections", "objective", "validation loss", "validation accuracy", "seconds"], lines)


def table_full(store: Store) -> str:
    """Selections tuned in full, beside what the brief tuning said."""
    lines = []
    for row in store.rows("objective"):
        limit, name = row["limit"], row["method"]
        source = f"{store.network}/full/{percent(limit)}-{name}/1"
        if limit in store.scale.limits and name in ("naive", "uniform", "lcp-1"):
            source = f"{store.network}/tune/{name.replace('lcp-1', 'sweep')}-{percent(limit)}/1"
        for long in store.rows("results", source):
            difference = abs(row["cut loss"] - row["full loss"]) if row["cut loss"] is not None else float("inf")
            figures = [f"{difference:.3f}", f"{100 * row['val_accuracy']:.2f}", f"{100 * long['val_accuracy']:.2f}"]
            lines.append([f"{percent(limit)} %", name, *figures])
    return markdown(["MACs", "selection", "loss difference", "after brief tuning", "after full tuning"], lines)


def table_best(store: Store) -> str:
    """What additions to the recipe give at half the MACs, on validation images; the chosen one on the test images."""
    rows = [*store.rows("results", *(f"{store.network}/tune/{m}-50/1" for m in ("naive", "sweep", "each")))]
    rows += store.rows("results", f"{store.network}/best/")
    record = store.folder / "best.json"
    best = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    lines = []
    for row in sorted(rows, key=lambda row: -row["val_accuracy"]):
        recipe = store.cells[row["cell"]]["recipe"]
        decay = recipe.get("lr_decay") or recipe["schedule"]  # as older records call it
        words = f"{recipe['epochs']} epochs, {decay} from {recipe['lr']:g}"
        words += f", distilled {recipe['distill']:g}" if recipe["distill"] else ""
        final = f"{100 * best['test_accuracy']:.2f}" if best and best["chosen"] == row["cell"] else ""
        lines.append(
            [row["method"], words, f"{100 * row['macs_share']:.1f} %", f"{100 * row['val_accuracy']:.2f}", final]
        )
    return markdown(["network", "tuning", "MACs", "validation", "test, of the chosen one"], lines)


def table_speed(store: Store) -> str:
    """How fast the tunings above went, by how many there were in a fleet."""
    rates: dict[tuple[int, bool], list[float]] = {}
    for cell in store.cells.values():
        if cell["kind"] == "tune" and cell["network"] == store.network:
            together = cell.get("fleet", 1)
            rates.setdefault((together, cell["recipe"]["distill"] > 0), []).append(together * cell["rate"])
    lines = [
        [str(together), "distilled" if distilled else "", f"{min(found):,.0f}", f"{max(found):,.0f}"]
        for (together, distilled), found in sorted(rates.items())
    ]
    return markdown(["networks together", "", "slowest, images per second", "fastest"], lines or [[MISSING] * 4])


def table_missing(store: Store) -> str:
    """What has not been run yet, and how to."""
    lines = []
    names = sorted({name for cell in registry(store.scale).values() for name in cell.shown})
    for shown in names:
        cells = chosen(registry(store.scale), [], [shown])
        lacking = [cell for cell in cells if not store.has(cell.name)]
        lines.append(
            [shown, f"{len(cells) - len(lacking)} of {len(cells)}", f"`run.py --show {shown}`" if lacking else ""]
        )
    birds = birds_cells.cells()
    lacking = [cell for cell in birds if not store.has(cell.name)]
    lines.append(["birds", f"{len(birds) - len(lacking)} of {len(birds)}", "`birds.py`" if lacking else ""])
    return markdown(["for", "cells done", "the rest"], lines)


TABLES: dict[str, Callable[[Store], str]] = {
    "claims": claims.table,
    "table-1": table_1,
    "rivals": table_rivals,
    "published": table_published,
    "published-resnet50": table_resnet50,
    "before": table_before,
    "others": table_others,
    "anew": table_anew,
    "params": table_params,
    "metrics": table_metrics,
    "floors": table_floors,
    "searches": table_searches,
    "objectives": table_objectives,
    "full": table_full,
    "best": table_best,
    "birds": birds_cells.table_birds,
    "birds-rates": birds_cells.table_rates,
    "table-3": table_3,
    "speed": table_speed,
    "missing": table_missing,
}


def pages(docs: Path = DOCS) -> list[Path]:
    """The page of claims, and those of details."""
    return [docs / "results.md", *sorted((docs / "results").glob("*.md"))]


def refresh(page: str, store: Store, images: Path = DOCS / "images" / "paper") -> str:
    """The page with everything from `<!-- table: NAME -->` (or figure) to `<!-- end -->` made anew."""

    def made(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        if kind == "table":
            inside = TABLES[name](store)
        elif (images / f"{name}.svg").is_file():
            inside = f"![{name.replace('-', ' ')}](../images/paper/{name}.svg)\n"
        else:
            inside = f"*{name.replace('-', ' ').capitalize()} has no cells yet.*\n"
        return f"<!-- {kind}: {name} -->\n\n{inside}\n<!-- end -->"

    return re.sub(r"<!-- (table|figure): ([\w-]+) -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of cells to take over")
    parser.add_argument("--again", action="store_true", help="their baselines were trained a second time")
    parser.add_argument("--show", nargs="+", default=[], help="tables and figures to show; all if none is named")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of results.md, results/ and images/")
    parser.add_argument("--tiny", action="store_true", help="the cells of run.py --tiny")
    options = parser.parse_args()
    from paper import figures

    store = Store(options.results, TINY if options.tiny else PAPER)
    if options.runs:
        print(f"{len(store.gather(options.runs, options.again))} cells taken over from {options.runs}")
        store.save()
    unknown = sorted(set(options.show) - {*TABLES, *figures.FIGURES})
    if unknown:
        sys.exit(
            f"no table or figure is called {', '.join(unknown)}; there are {', '.join([*TABLES, *figures.FIGURES])}"
        )
    for name in options.show:
        if name in TABLES:
            print(TABLES[name](store))
    images = options.docs / "images" / "paper"
    for name in figures.draw(store, images, options.show):
        print(f"drew {name}")
    for page in filter(Path.is_file, pages(options.docs)):
        text = refresh(page.read_text(encoding="utf-8"), store, images)
        with atomic_write(page) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
