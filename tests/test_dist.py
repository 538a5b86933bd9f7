"""What is handed out: the wheel, built from the source distribution, holds the whole package and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import lcprune

pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta as b; b.build_{}({!r})"


def build(kind: str, folder: Path, out: Path) -> Path:
    """One file, made in a folder with the packages that are here."""
    command = [sys.executable, "-c", BUILD.format(kind, str(out))]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (made,) = out.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def test_a_wheel_from_the_source_distribution_holds_the_whole_package_and_nothing_else(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=left_out)
    (tree / "tests").mkdir()
    shutil.copy(__file__, tree / "tests")

    with tarfile.open(build("sdist", tree, tmp_path)) as tar:
        tar.extractall(tmp_path, filter="data")
    source = tmp_path / f"lcprune-{lcprune.__version__}"
    assert (source / "CITATION.cff").is_file() and not (source / "tests").exists()

    held = zipfile.ZipFile(build("wheel", source, tmp_path)).namelist()
    package = {p.relative_to(tree / "src").as_posix() for p in (tree / "src").rglob("*") if p.is_file()}
    about = f"lcprune-{lcprune.__version__}.dist-info/"
    assert {name for name in held if not name.startswith(about)} == {n for n in package if ".egg-info/" not in n}
    assert about + "licenses/LICENSE" in held
