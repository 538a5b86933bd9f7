"""The documentation runs: every Python block, every lcprune command, every link."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import few_digits
from lcprune import Search
from lcprune.cli import main

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
RUN = [
    "README.md",
    "docs/tutorial.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "how-to").glob("*.md")),
]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", RUN)
def test_the_examples_run(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    few, usual = few_digits.build(), Search.__init__.__defaults__
    monkeypatch.setattr("lcprune.data.registry._digits", lambda: few)  # the ways are tried, not how well they do
    # Where an example leaves the search to its defaults.
    monkeypatch.setattr(Search.__init__, "__defaults__", (4, 4, *usual[2:]))
    namespace: dict[str, object] = {"__name__": "docs"}
    for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        named = re.match(r"# (\w+\.py)\n", text)
        if kind == "python" and named:
            Path(named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, page, "exec"), namespace)
        elif kind == "bash":
            for line in text.strip().splitlines():
                assert main(shlex.split(line)[1:]) == 0, (line, capfd.readouterr().err)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_reference_is_up_to_date():
    namespace: dict[str, object] = {"__name__": "make_reference", "__file__": str(ROOT / "docs" / "make_reference.py")}
    exec(compile((ROOT / "docs" / "make_reference.py").read_text(), "make_reference.py", "exec"), namespace)
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert namespace["reference"]() == written, "run: make docs"  # type: ignore[operator]
