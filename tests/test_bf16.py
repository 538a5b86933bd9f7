"""A processor on which bf16 ends the process: found out in a child, refused where it was asked for, and remembered."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune import bf16, data, latency, tune
from lcprune.batches import collate, draw
from lcprune.cli import main
from lcprune.evaluate import SlicingEvaluator, ZeroingEvaluator
from lcprune.export import export
from lcprune.files import cache_folder
from searching import searching

LYING = Path(__file__).parent / "lying_processor"
KILLED = r"by SIGILL; start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in its environment"


@pytest.fixture
def ignorant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process that knows nothing of its processor, which lies; the cache is empty."""
    monkeypatch.setenv("LCPRUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(LYING))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    forget()
    yield monkeypatch
    forget()


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the verdict."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LCPRUNE_CACHE", str(folder))
        patch.setenv("PYTHONPATH", str(LYING))
        patch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        forget()
        assert "PyTorch's operators end the process by SIGILL" in bf16.trouble()
    forget()
    return folder


@pytest.fixture
def lying(verdict: Path, ignorant: pytest.MonkeyPatch) -> None:
    """A processor that was found out before."""
    ignorant.setenv("LCPRUNE_CACHE", str(verdict))


def forget() -> None:
    bf16._verdict.cache_clear()
    bf16.say_once.cache_clear()


def children(folder: Path, do: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes do something else when they start."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import os, signal, sys, time\n{do}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


# -- finding out -----------------------------------------------------------------------------------------------------


def test_a_child_that_dies_of_it_is_remembered(lying, ignorant) -> None:
    ignorant.setattr(sys, "executable", "/nowhere/python")  # no child is needed to know
    assert "by SIGILL" in bf16.trouble()


def test_another_setting_is_tried_again_and_the_recommended_one_helps(lying, ignorant) -> None:
    assert "by SIGILL" in bf16.trouble()
    ignorant.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    assert bf16.trouble() is None
    kept = [json.loads(file.read_text()) for file in cache_folder("bf16").iterdir()]
    assert sorted((entry["works"], entry["machine"]["settings"]) for entry in kept) == [
        (False, {}),
        (True, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}),
    ]


@pytest.mark.parametrize("part", ["torch", "processor"])
def test_another_pytorch_or_processor_is_tried_again(part, lying, ignorant) -> None:
    another = {**bf16._machine(), part: {"model name": "another"}}
    ignorant.setattr(bf16, "_machine", lambda: another)
    ignorant.setattr(sys, "executable", "/nowhere/python")
    assert "no process could be started" in bf16.trouble()


@pytest.mark.parametrize("text", ["", '{"works": tr', "[]", '{"works": true}', '{"works": true, "machine": {}}'])
def test_a_broken_verdict_is_found_anew(text, verdict, ignorant, tmp_path) -> None:
    (name,) = (file.name for file in (verdict / "bf16").iterdir() if not json.loads(file.read_text())["works"])
    (tmp_path / "cache" / "bf16").mkdir(parents=True)
    (tmp_path / "cache" / "bf16" / name).write_text(text)
    ignorant.setattr(sys, "executable", "/nowhere/python")
    assert "no process could be started" in bf16.trouble()


@pytest.mark.parametrize(
    ("do", "story"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "end the process by SIGTERM"),
        ("sys.modules['torch'] = None", "fail: ModuleNotFoundError"),
        ("time.sleep(60)", "not done after 0.5 s"),
    ],
)
def test_a_trial_that_says_nothing_of_the_processor_fails_and_is_not_remembered(do, story, ignorant, tmp_path) -> None:
    ignorant.setattr(bf16, "SECONDS", 0.5 if "sleep" in do else 60)
    children(tmp_path / "site", do, ignorant)
    assert story in bf16.trouble()
    assert not cache_folder("bf16").exists()


@pytest.mark.cpu_bf16
def test_wrong_numbers_are_not_taken_for_right_ones(ignorant, tmp_path) -> None:
    """An emulated instruction may also just compute something else."""
    ignorant.setattr(nn.Conv3d, "forward", lambda self, x, forward=nn.Conv3d.forward: forward(self, x) * 1.1)
    bf16.try_operators()  # float32 is off by as much
    wrong = lambda self, x, forward=nn.Linear.forward: forward(self, x) * (1.1 if x.dtype == torch.bfloat16 else 1)  # noqa: E731
    ignorant.setattr(nn.Linear, "forward", wrong)
    with pytest.raises(RuntimeError, match=r"Linear\(.*\) in bf16 is 0.1 off"):
        bf16.try_operators()


def test_a_cache_that_cannot_be_written_does_no_harm(ignorant, tmp_path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    children(tmp_path / "site", "os.kill(os.getpid(), signal.SIGILL)", ignorant)
    assert "by SIGILL" in bf16.trouble()


@pytest.mark.cpu_bf16
def test_the_trial_runs_whatever_its_parent_is_like(tmp_path) -> None:
    code = "import sys, pathlib; from lcprune import bf16; pathlib.Path(sys.argv[1]).write_text(str(bf16.trouble()))"
    told = tmp_path / "told"
    strange = "trap '' INT; export PYTHONWARNINGS=error PYTHONINSPECT=1; exec <&- >&-"
    command = f"{strange}; exec {sys.executable} -W ignore -c '{code}' {told}"
    environment = {**os.environ, "LCPRUNE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(["sh", "-c", command], env=environment, check=False, timeout=120)
    assert told.read_text() == "None"


@pytest.mark.cpu_bf16
def test_a_ctrl_c_on_the_terminal_does_not_reach_the_trial(tmp_path, ignorant) -> None:
    """Training takes it as a request; it must not look like a verdict."""
    reached = "os.getsid(0) != os.getpid()"  # what is in the terminal's session gets its signals
    children(tmp_path / "site", f"{reached} and os.kill(os.getpid(), signal.SIGINT)", ignorant)
    assert bf16.trouble() is None


# -- what follows ----------------------------------------------------------------------------------------------------


def test_searches_in_bf16_are_refused(lying, plain, digits) -> None:
    search = {"pool": 2, "iterations": 2, "images": 64, "after": "cut", "precision": "bf16"}
    with pytest.raises(lcprune.SearchError, match=f'precision="bf16": .*{KILLED}, or choose precision="fp32"'):
        lcprune.prune(plain.model, digits.example, macs=0.5, **searching(digits.train, **search), progress=False)
    batches = collate(draw(digits.train, 16, seed=0), 16)
    for kind in (SlicingEvaluator, ZeroingEvaluator):
        with pytest.raises(lcprune.SearchError, match=KILLED):
            kind(plain.graph, batches, cross_entropy, precision="bf16")


def _nothing(model, batches) -> None:
    """A preparation of a user's own."""


def test_prepared_candidates_are_judged_in_float32_and_may_ask_for_anything(lying, plain, digits) -> None:
    search = {"pool": 2, "iterations": 1, "images": 64, "prepare": _nothing, "precision": "bf16"}
    lcprune.prune(plain.model, digits.example, macs=0.5, **searching(digits.train, **search), progress=False)


def test_training_and_judging_in_bf16_are_refused(lying) -> None:
    model, dataset = lcprune.models.build("digits_resnet"), data.load("digits")
    recipe = tune.recipe("finetune", epochs=1, precision="bf16")
    with pytest.raises(lcprune.TuneError, match=KILLED):
        tune.fit(model, dataset, recipe, device="cpu", progress=False)
    with pytest.raises(lcprune.TuneError, match=KILLED):
        tune.evaluate(model, dataset, device="cpu", precision="bf16")
    plan = lcprune.prune(model, lcprune.models.example_input("digits_resnet"), macs=0.5, method="naive").plan
    with pytest.raises(lcprune.TuneError, match=KILLED):
        tune.fit_fleet(model, [plan], dataset, recipe, device="cpu", progress=False)


def test_networks_in_bf16_are_refused_before_they_run(lying) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)).bfloat16()
    x = torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16)
    for error, call in [
        (lcprune.TraceError, lambda: lcprune.trace(model, x)),
        (lcprune.LatencyError, lambda: latency.measure({"it": model}, x, [1], device="cpu", progress=False)),
        (lcprune.ExportError, lambda: export(model, x, "nowhere", "torch")),
        (lcprune.TuneError, lambda: tune.evaluate(model, data.load("digits"), device="cpu")),
    ]:
        with pytest.raises(error, match=rf"the network's weights are bf16: .*{KILLED}, or convert .* model.float\(\)"):
            call()
    lcprune.trace(model.float(), x.float())


def test_what_nobody_asked_for_falls_back_to_float32_and_says_so_once(lying, tmp_path, caplog) -> None:
    assert tune.recipe("imagenet").precision == "auto"
    model, dataset = lcprune.models.build("digits_resnet"), data.load("digits")
    recipe = tune.recipe("imagenet", epochs=1, batch_size=128)
    with caplog.at_level(logging.WARNING, "lcprune"):
        tune.fit(model, dataset, recipe, run_dir=tmp_path / "run", device="cpu", progress=False)
        tune.evaluate(model, dataset, device="cpu", precision="auto")
    said = [record.getMessage() for record in caplog.records if "bf16" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("computing in float32: bf16 does not work on this CPU")
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["precision"] == "fp32"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("prune digits_resnet --macs 50% --set search.precision=bf16", "search: precision="),
        ("prune digits_resnet --macs 50% --epochs 1 --set tune.precision=bf16", "tune: precision="),
        ("pareto digits_resnet --set search.precision=bf16", "search: precision="),
        ("compare digits_resnet --set search.precision=bf16", "search: precision="),
        ("train digits_resnet --set tune.precision=bf16", "tune: precision="),
        ("demo --set tune.precision=bf16", "tune: precision="),
    ],
)
def test_commands_refuse_it_before_a_folder_is_made(typed, words, lying, tmp_path, capfd) -> None:
    own = [] if typed.startswith("demo") else ["--data", "digits"]
    assert main([*typed.split(), *own, "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    said = capfd.readouterr().err
    assert words in said and "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in said
    assert not (tmp_path / "run").exists()
