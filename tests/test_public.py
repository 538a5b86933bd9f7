"""What `import lcprune` gives, what it costs, and what has to be installed for it."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lcprune
from lcprune.cli import app
from lcprune.files import read_toml

ROOT = Path(__file__).parents[1]
COMMANDS = [command.__name__ for command in app._COMMANDS]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A new Python process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=120
    )


# What is asked right after `import lcprune`. Each in a process of its own, forked from one that has PyTorch, which
# takes seconds to import.
FORKS = """
import json, os, sys, torch
answers = {}
for name, code in json.loads(sys.argv[1]).items():
    answer, said = os.pipe()
    if not os.fork():
        os.dup2(said, 1)
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    os.close(said)
    answers[name] = open(answer).read()
    assert os.wait()[1] == 0, name
print(json.dumps(answers))
"""
NAMES = "import lcprune; print(*(f'{name}={type(getattr(lcprune, name)).__name__}' for name in lcprune.__all__))"
FIRST = ["lcprune.methods()", "lcprune.methods.names()", "[lcprune.methods.get('amc').name]"]
BARE = {
    "dir": "import lcprune; first = dir(lcprune); lcprune.prune, lcprune.pareto; print(first == dir(lcprune), *first)",
    "names": NAMES,
    "star": "from lcprune import *; prune, Plan, methods.register, metrics.score, export.export, tune.fit",
    **{first: f"import lcprune; print(*{first})" for first in FIRST},
}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """The words that each of these prints."""
    answers = json.loads(run("-c", FORKS, json.dumps(BARE)).stdout)
    return {name: answer.split() for name, answer in answers.items()}


# -- names -----------------------------------------------------------------------------------------------------------


def test_dir_shows_what_is_public_and_nothing_else(said: dict[str, list[str]]) -> None:
    same, *names = said["dir"]
    assert same == "True"
    assert [name for name in names if not name.startswith("__")] == sorted(lcprune.__all__)


def test_every_public_name_is_there_after_a_bare_import(said: dict[str, list[str]]) -> None:
    kinds = dict(pair.split("=") for pair in said["names"])
    assert kinds.keys() == set(lcprune.__all__)
    modules = {name for name, kind in kinds.items() if kind == "module"}
    assert modules == {"baselines", "data", "engine", "export", "latency", "models", "report", "tune"}
    assert said["star"] == []


def test_importing_every_module_hides_no_public_name() -> None:
    """A module of the same name would take the place of a function."""
    public = {name: getattr(lcprune, name) for name in lcprune.__all__}
    for module in pkgutil.iter_modules(lcprune.__path__, "lcprune."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
    assert {name: getattr(lcprune, name) for name in lcprune.__all__} == public


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_scripts_import_names_that_exist(folder: str) -> None:
    """Few of them run in the tests, and mypy does not look at them."""
    wrong = []
    for script in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lcprune":
                own = {name.name for name in node.names}
                module = importlib.import_module(str(node.module))
                inner = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
                wrong += [f"{script.name}: {node.module}.{name}" for name in own - inner if not hasattr(module, name)]
    assert wrong == []


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'lcprune' has no attribute 'prunee'"):
        lcprune.prunee  # noqa: B018


@pytest.mark.parametrize("first", FIRST)
def test_the_baselines_are_among_the_methods_whatever_is_used_first(first: str, said: dict[str, list[str]]) -> None:
    assert "amc" in said[first]


def test_a_name_of_ours_cannot_be_taken() -> None:
    with pytest.raises(lcprune.ConfigError, match="'lcp' exists already"):
        lcprune.methods.register("lcp")(lambda task: None)
    with pytest.raises(lcprune.MetricError, match="'l2' exists already"):
        lcprune.metrics.register("l2")(lambda graph: None)


# -- time ------------------------------------------------------------------------------------------------------------


def test_help_does_not_wait_for_pytorch() -> None:
    imported = re.findall(r"\| +([\w.]+)$", run("-X", "importtime", "-m", "lcprune", "--help").stderr, re.M)
    assert "lcprune.cli.app" in imported
    assert not {"torch", "numpy", "altair"} & set(imported)


def test_no_command_needs_pytorch_to_show_its_options() -> None:
    code = (
        "import sys; from lcprune.cli import main\n"
        f"codes = [main([command, '--help']) for command in {COMMANDS}]\n"
        "print(codes, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = run("-c", code)
    assert done.stderr.strip() == f"{[0] * len(COMMANDS)} False"
    assert all(f"lcprune {command}" in done.stdout for command in COMMANDS)


# -- what is installed -----------------------------------------------------------------------------------------------

# Packages of extras, and what PyTorch brings along.
OPTIONAL = {"onnx", "onnxruntime", "onnxscript", "PIL", "ray", "timm", "torchvision"}
OPTIONAL |= {"triton", "vl_convert"}


def imports(folder: Path) -> set[str]:
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module))
    return {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - {"lcprune"}


def test_what_is_installed_by_default_is_what_is_used() -> None:
    project = read_toml(ROOT / "pyproject.toml")["project"]
    core = {re.split(r"[><=;\[ ]", name)[0] for name in project["dependencies"]}
    assert imports(ROOT / "src" / "lcprune") - OPTIONAL - {"tomllib"} == core
