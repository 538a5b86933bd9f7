"""One self-contained HTML page from the records of runs: works offline, prints well, light and dark."""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import product
from pathlib import Path

from lcprune.errors import ConfigError
from lcprune.files import atomic_write
from lcprune.plan import Plan
from lcprune.report.accuracy import before_after, frontier_macs, frontier_params, training
from lcprune.report.figure import Figure
from lcprune.report.insides import latency, metric, schedule, search
from lcprune.report.records import Records, collect, summarise
from lcprune.report.render import MARK, javascript, pictures, svg, vega_config, write_figures
from lcprune.report.tables import result_table
from lcprune.runs import CONFIG, ENVIRONMENT, PLAN, Row, RunFolder
from lcprune.summary import html_table, plan_html
from lcprune.version import VERSION

# In the order of the page.
_FIGURES = (frontier_macs, frontier_params, before_after, schedule, search, metric, latency, training)


def make_figures(records: Records) -> list[Figure]:
    """Every figure for which there are records, in the order of the page."""
    made = (draw(records) for draw in _FIGURES)
    return [figure for figure in made if figure is not None]


def write_report(
    runs: Sequence[RunFolder],
    path: str | os.PathLike[str],
    title: str | None = None,
    *,
    force: bool = False,
) -> Path:
    """Write the page, and its figures as PNG and SVG where the extra `figures` is installed.

    An earlier report is replaced; files that are not lcprune's are not, unless with `force`.

    Args:
        runs: where the records are.
        path: the HTML file.
        title: heading; the folders' names otherwise.
        force: replace whatever is there.

    Returns:
        The page's path.

    Raises:
        ConfigError: the runs hold no records, or a file that is not lcprune's is in the way.
    """
    records = collect(runs, title)
    if records.empty:
        raise ConfigError(f"nothing to report: {', '.join(str(run.path) for run in runs)} holds no records yet")
    figures = make_figures(records)
    target = Path(path)
    drawable = figures if pictures() else []
    if not force:
        _check_free(target, [target.parent / "figures" / f"{figure.name}.svg" for figure in drawable])
    drawn = {figure.name: svg(figure) for figure in drawable}
    if drawn:
        write_figures(drawn, target.parent / "figures")
    with atomic_write(target) as temporary:
        temporary.write_text(page(records, figures, drawn), encoding="utf-8")
    return target


def _check_free(target: Path, pictures: Sequence[Path]) -> None:
    """Refuse to replace what is not ours; a page that is says that the figures beside it are, too."""
    if _is_ours(target):
        return
    for file in (target, *pictures, *(picture.with_suffix(".png") for picture in pictures)):
        if file.exists() and not _is_ours(file.with_suffix(".svg") if file.suffix == ".png" else file):
            raise ConfigError(f"{file} was not made by lcprune: replace it with --force, or choose another --out")


def _is_ours(file: Path) -> bool:
    return file.is_file() and MARK in file.read_text(encoding="utf-8", errors="replace")


def page(records: Records, figures: Sequence[Figure], drawn: Mapping[str, str]) -> str:
    """The page as text; `drawn` are figures as SVG by name, for printers and browsers without scripts."""
    title = html.escape(records.title)
    embedded = {
        "specs": {f.name: {**f.spec, "usermeta": {"name": f.name}} for f in figures},
        "configs": {mode: vega_config(mode) for mode in ("light", "dark")},
        "columns": {"metric": len({row.get("metric") for row in records.metric})},
    }
    packed = json.dumps(embedded, separators=(",", ":")).replace("</", "<\\/")
    sections = [
        _table_section(records),
        *(_figure_section(figure, drawn.get(figure.name)) for figure in figures),
        *(_layers_section(run) for run in records.runs if run.file(PLAN).is_file()),
        _configuration_section(records),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title} · lcprune</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{_text('page.css')}</style>",
            # Before anything is painted, so that a dark page never flashes white.
            "<script>document.documentElement.dataset.theme ="
            ' matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";</script>',
            "<noscript><style>.live, button { display: none } .paper { display: block }</style></noscript>",
            "</head><body><main>",
            f'<header><div><h1>{title}</h1><p class="lead">{_lead(records)}</p></div>',
            '<button id="theme" type="button">light / dark</button></header>',
            *(_unfinished(run) for run in records.runs if run.stopped),
            _facts(records),
            '<div class="grid">',
            *sections,
            "</div>",
            f"<footer>{MARK} {VERSION} from the records of "
            + ", ".join(f"<code>{html.escape(run.path.name)}</code>" for run in records.runs)
            + (". The same figures lie beside this page as PNG and SVG." if drawn else ".")
            + "</footer>",
            "</main>",
            f'<script id="figures" type="application/json">{packed}</script>',
            f'<script type="module">{javascript()}\n{_text("page.js")}</script>',
            "</body></html>",
        ]
    )


def _lead(records: Records) -> str:
    said = []
    for run in records.runs:
        model, data = run.settings.get("model"), run.settings.get("data")
        words = " on ".join(str(part) for part in (model, data) if part)
        said.append(f"{run.command}: {words}" if words else run.command)
    return html.escape(" · ".join(dict.fromkeys(said)))


def _unfinished(run: RunFolder) -> str:
    name, said = html.escape(run.path.name), html.escape(str(run.stopped))
    command = html.escape(f"lcprune {run.command} --out {run.path} --resume")
    text = f"<b>{name} is not finished</b>: {said}. What is missing was not made yet; go on with <code>{command}</code>"
    return f'<p class="warning">{text}</p>'


def _facts(records: Records) -> str:
    """The few numbers that a reader wants first; of several trials the mean, as in the table."""
    results, score, key = summarise(records.results), records.score, records.score.name
    original = next((row for row in results if row.get("method") == "original"), None)
    cut = [row for row in results if row.get("method") != "original"]
    pruned = [row for row in cut if row[key] is not None]
    facts: list[tuple[str, str, str]] = []
    if original and original[key] is not None:
        facts.append((f"original {html.escape(score.name)}", score.text(original[key]), ""))
    if original:
        size = f"{original['params'] / 1e6:.3g} M parameters"
        facts.append(("original MACs", f"{original['macs'] / 1e6:.3g} M", size))
    if pruned:
        smallest = min(row["macs"] for row in pruned)
        best = max((row for row in pruned if row["macs"] <= 1.02 * smallest), key=lambda row: score.worth(row[key]))
        top = max(pruned, key=lambda row: score.worth(row[key]))
        for name, row in [("best pruned network", top), ("best of the smallest", best)][: 1 if best is top else 2]:
            facts.append((name, score.text(row[key]), _reached(row)))
    elif cut:
        row = min(cut, key=lambda row: row["macs"])
        facts.append(("smallest network", f"{row['macs'] / 1e6:.3g} M MACs", _reached(row)))
    if not facts:
        return ""
    cards = "".join(
        f"<div><dt>{name}</dt><dd>{value} <small>{html.escape(note)}</small></dd></div>" for name, value, note in facts
    )
    return f'<dl class="facts">{cards}</dl>'


def _reached(row: Row) -> str:
    """A network's name, and how much smaller it is."""
    parts = [str(row["network"])]
    if row["trials"] > 1:
        parts.append(f"mean of {row['trials']} trials")
    for share, words in (("macs_share", "MACs"), ("params_share", "parameters")):
        if row.get(share) is not None:
            parts.append(f"{100 * (1 - row[share]):.1f} % fewer {words}")
    return ", ".join(parts)


def _table_section(records: Records) -> str:
    if not records.results:
        return ""
    table = html_table(*result_table(records.results))
    return f'<section id="table"><h2>Networks</h2><div class="scroll">{table}</div></section>'


def _figure_section(figure: Figure, drawn: str | None) -> str:
    title, picture = html.escape(figure.title), ""
    if drawn is not None:  # once, for printers and browsers without scripts
        data = base64.b64encode(drawn.encode()).decode()
        picture = f'<img class="paper" alt="{title}" src="data:image/svg+xml;base64,{data}">'
    return (
        f'<section class="{"wide" if figure.wide else "half"}"><h2>{title}</h2>'
        f'<p class="caption">{html.escape(figure.caption)}</p>'
        f'<div class="live{"" if drawn else " alone"}" id="figure-{figure.name}"></div>{picture}</section>'
    )


def _layers_section(run: RunFolder) -> str:
    table = plan_html(Plan.load(run.file(PLAN)))
    name = html.escape(run.path.name)
    return (
        f'<section class="layers"><h2>Layers of {name}</h2><details><summary>before and after</summary>'
        f'<div class="scroll">{table}</div></details></section>'
    )


def _configuration_section(records: Records) -> str:
    parts = []
    for run, name in product(records.runs, (CONFIG, ENVIRONMENT)):
        if run.file(name).is_file():
            text = html.escape(run.file(name).read_text(encoding="utf-8").strip())
            label = html.escape(f"{run.path.name}/{name}" if len(records.runs) > 1 else name)
            is_open = " open" if name == CONFIG and len(records.runs) == 1 else ""
            parts.append(f"<details{is_open}><summary>{label}</summary><pre>{text}</pre></details>")
    return f'<section id="configuration"><h2>Configuration</h2>{"".join(parts)}</section>'


def _text(name: str) -> str:
    return resources.files("lcprune.report").joinpath(name).read_text(encoding="utf-8")
