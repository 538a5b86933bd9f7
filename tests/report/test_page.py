"""The report: every figure from its records, one file that needs nothing else."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import re
import sys
from dataclasses import replace

import pytest

from lcprune.errors import ConfigError, MissingDependencyError
from lcprune.report import collect, make_figures, render, write_report
from lcprune.report.page import page as text_of
from lcprune.runs import RunFolder

NAMES = [
    "frontier_macs",
    "frontier_params",
    "before_after",
    "schedule",
    "search",
    "metric",
    "latency",
    "training",
]


def test_every_kind_of_record_gets_its_figure(sample, tmp_path):
    assert [figure.name for figure in make_figures(collect([sample(tmp_path / "a")]))] == NAMES


def test_figures_without_records_are_left_out(tmp_path):
    run = RunFolder.create(tmp_path / "a", "prune", {})
    run.add("search", {"network": "lcp 50%", "iteration": 0, "difference": 0.0, "best": 0.0, "naive": 0.0})
    assert [figure.name for figure in make_figures(collect([run]))] == ["search"]


@pytest.mark.parametrize(("after", "words"), [("repair", "were repaired"), ("statistics", "got new"), ("cut", "")])
def test_the_search_says_what_candidates_got_before_they_were_judged(after, words, tmp_path):
    run = RunFolder.create(tmp_path / "run", "pareto", {})
    for name in ("lcp 50%", "lcp 20%"):
        run.add("search", {"network": name, "iteration": 0, "difference": -0.1, "best": -0.1, "naive": -0.1})
        run.add("results", {"network": name, "method": "lcp", "limit": 0.5, "seed": 0, "after": after})
    (figure,) = (figure for figure in make_figures(collect([run])) if figure.name == "search")
    assert (f"Candidates {words}" if words else "") in figure.caption and ("Candidates" in figure.caption) == bool(
        words
    )


def test_networks_that_were_not_tuned_are_not_said_to_be(sample, tmp_path):
    tuned = collect([sample(tmp_path / "a")])
    cut = replace(
        tuned, results=[{**row, "accuracy_before": row["accuracy"], "accuracy_repaired": None} for row in tuned.results]
    )
    frontier, names = make_figures(cut)[0], [figure.name for figure in make_figures(cut)]
    assert "before_after" not in names and frontier.caption.startswith("On held-out data")
    assert make_figures(tuned)[0].caption.startswith("After tuning, on held-out data")


def test_the_first_numbers_are_means_over_trials_as_in_the_table(sample, tmp_path):
    run = sample(tmp_path / "a", seeds=2)
    rows = [row for row in run.records("results") if row["network"] == "lcp 50%"]
    mean, best = sum(row["accuracy"] for row in rows) / 2, max(row["accuracy"] for row in rows)
    page = write_report([run], run.file("report.html")).read_text()
    cards = page[page.index('class="facts"') : page.index("</dl>")]
    assert f"{mean:.2%}" != f"{best:.2%}"
    assert f"{100 * mean:.2f} % <small>lcp 50%, mean of 2 trials" in cards


def test_naive_is_a_triangle_at_its_value(sample, tmp_path):
    spec = next(f for f in make_figures(collect([sample(tmp_path / "a")])) if f.name == "search").spec
    triangles = [layer for layer in spec["layer"] if layer["mark"].get("shape") == "triangle-up"]
    assert len(triangles) == 1
    assert sorted(row["naive"] for row in triangles[0]["data"]["values"]) == [2.8, 5.6]


def test_the_page_is_one_file_with_figures_for_papers_beside_it(sample, tmp_path):
    run = sample(tmp_path / "a", seeds=2)
    page = write_report([run], run.file("report.html")).read_text()
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page)
    assert "<&>" not in page.split("<script", maxsplit=1)[0]
    assert page.count("<script") == page.count("</script>")
    for name in NAMES:
        assert f'id="figure-{name}"' in page
        assert run.file("figures", f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert run.file("figures", f"{name}.svg").read_text().startswith("<svg")
    embedded = json.loads(re.search(r'<script id="figures"[^>]*>(.*?)</script>', page, re.S)[1])
    assert list(embedded["specs"]) == NAMES


def test_nothing_to_report_is_said(tmp_path):
    run = RunFolder.create(tmp_path / "a", "prune", {})
    with pytest.raises(ConfigError, match="nothing to report"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_without_the_package_for_pictures_the_page_still_draws_itself(sample, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # as if it were not installed
    monkeypatch.setattr(render.importlib.util, "find_spec", lambda name: None)
    render.say_once.cache_clear()
    run = sample(tmp_path / "a")
    with caplog.at_level(logging.WARNING, "lcprune"):
        pages = [write_report([run], run.file(name)).read_text() for name in ("report.html", "again.html")]
    assert [record.message for record in caplog.records] == [
        "the report is without PNG and SVG files: vl-convert-python is not installed; it comes with: "
        "pip install lcprune[figures]"
    ]
    for page in pages:
        assert all(f'<div class="live alone" id="figure-{name}">' in page for name in NAMES)
        assert "window.vegaEmbed=" in page and 'class="paper"' not in page and "as PNG and SVG" not in page
    assert not run.file("figures").exists()
    with pytest.raises(MissingDependencyError, match=r"lcprune\[figures\]"):
        render.svg(make_figures(collect([run]))[0])


def test_the_script_of_the_page_is_the_one_that_draws_the_pictures():
    vl_convert = pytest.importorskip("vl_convert")
    if importlib.metadata.version("vl-convert-python") != "1.9.0.post1":
        pytest.skip("the script comes from vl-convert-python 1.9.0.post1")
    assert render.javascript() == vl_convert.javascript_bundle().replace("</script", "<\\/script")


def test_only_an_earlier_report_is_replaced(tmp_path):
    run, mine = RunFolder.create(tmp_path / "a", "train", {}), tmp_path / "thesis"
    run.add("training", *({"network": "original", "epoch": e, "accuracy": 0.5} for e in range(2)))
    (mine / "figures").mkdir(parents=True)
    (mine / "page.html").write_text("years of work")
    with pytest.raises(ConfigError, match=r"page\.html was not made by lcprune.*--force"):
        write_report([run], mine / "page.html")
    if render.pictures():
        (mine / "figures" / "training.png").write_text("mine")
        with pytest.raises(ConfigError, match=r"training\.png was not made by lcprune"):
            write_report([run], mine / "other.html")
        assert (mine / "figures" / "training.png").read_text() == "mine"
    assert (mine / "page.html").read_text() == "years of work"
    write_report([run], mine / "page.html", force=True)
    write_report([run], mine / "page.html")
    write_report([run], mine / "other.html")


def test_an_unfinished_run_is_called_so(sample, tmp_path):
    run = sample(tmp_path / "a")
    for error, words in ((KeyboardInterrupt, "stopped by KeyboardInterrupt"), (None, None)):
        with contextlib.suppress(KeyboardInterrupt), run:
            if error is not None:
                raise error
        again = RunFolder.open(run.path)
        text = text_of(collect([again]), [], {})
        assert ("is not finished" in text) == (again.stopped is not None) == (error is not None)
        assert words is None or words in text
    run.file("log.txt").write_text("2026-01-31 12:00:00,000 INFO lcp 50 %: pruning\n")
    assert "without a word" in str(RunFolder.open(run.path).stopped)


def test_cards_and_schedule_say_what_was_reached_and_where(sample, tmp_path):
    records = collect([sample(tmp_path / "a")])
    assert "lcp 50%, 50.1 % fewer MACs, 50.0 % fewer parameters" in text_of(records, [], {})
    schedule = next(figure for figure in make_figures(records) if figure.name == "schedule")
    axis = schedule.spec["spec"]["layer"][0]["encoding"]["x"]
    assert axis["field"] == "group" and axis["sort"][0] == "layer1.0.conv1"
