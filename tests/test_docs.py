"""The documentation runs: every Python block, every lcprune command, every link; and the site builds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

import few_digits
import lcprune
from lcprune import Search, vision
from lcprune.cli import main
from lcprune.cli.app import app
from lcprune.models import registry
from lcprune.models.networks import ResNet

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
    monkeypatch.setitem(registry._BUILTIN, "digits_resnet", (few_digits.net, few_digits.INPUT_SHAPE))
    monkeypatch.setitem(registry._BUILTIN, "resnet20", (partial(ResNet, 1), (3, 32, 32)))
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


def test_commands_and_paths_are_those_that_exist():
    commands = typer.main.get_command(app).commands
    known = {name: {option for one in command.params for option in one.opts} for name, command in commands.items()}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        for command, words in re.findall(r"\blcprune ([a-z]+)( [^\n`#]*)?", text):
            if command in known:
                assert set(re.findall(r"(?<=\s)--[a-z-]+", words)) <= known[command], (page, command, words)
        for path in re.findall(r"(?:`|python )((?:benchmarks|docs|examples|src|tests)/[\w./-]+)", text):
            assert (ROOT / path).exists(), f"{page} names {path}"


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page are called, on GitHub and on the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("page", "package"),
    [("detector", "ultralytics"), ("lightning", "lightning"), ("transformers", "transformers"), ("optuna", "optuna")],
)
def test_the_examples_with_other_packages_run(page, package, tmp_path, monkeypatch):
    """Where the package is installed, and nothing is fetched; blocks are marked `py` there, not `python`."""
    vision.import_torchvision()
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Search.__init__, "__defaults__", (4, 4, *Search.__init__.__defaults__[2:]))
    if page == "detector":
        boxes(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for kind, text in BLOCK.findall((ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")):
        if kind == "py":
            exec(compile(text, page, "exec"), namespace)


def boxes(folder: Path) -> None:
    """`boxes.yaml`: a few images with a bright square each."""
    rng = np.random.default_rng(0)
    for number in range(12):
        part = "train" if number < 8 else "val"
        image, (left, top) = rng.integers(0, 60, (64, 64, 3), dtype=np.uint8), rng.integers(4, 30, 2)
        image[top : top + 24, left : left + 24] = 220
        for kind in ("images", "labels"):
            (folder / "boxes" / kind / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "boxes" / "images" / part / f"{number}.png")
        label = f"0 {(left + 12) / 64} {(top + 12) / 64} {24 / 64} {24 / 64}"
        (folder / "boxes" / "labels" / part / f"{number}.txt").write_text(label)
    text = f"path: {folder / 'boxes'}\ntrain: images/train\nval: images/val\nnames: {{0: box}}\n"
    (folder / "boxes.yaml").write_text(text)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if "://" not in target:
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), f"{page} links to {target}"
            assert not anchor or anchor in anchors(path), f"{page} links to {target}#{anchor}"


def test_the_site_builds_without_a_warning_has_every_public_name_and_asks_no_other_host(tmp_path):
    pytest.importorskip("material", reason="the site needs mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    for path, text in pages.items():
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//", text), path
    places = {name for text in pages.values() for name in re.findall(r'id="lcprune\.(?:\w+\.)*(\w+)"', text)}
    rooms = {name for name in lcprune.__all__ if (ROOT / "docs" / "api" / f"{name}.md").is_file()}
    assert not {*lcprune.__all__} - rooms - places, "docs/api/index.md lacks these"
