"""Wrong input is answered in one or two lines, with the right exit code, and nothing is lost."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import few_digits
from lcprune.cli.command import _in_words

PRUNE = ["prune", few_digits.NET, "--method", "naive"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "resnet57"], "no network is called 'resnet57'"),
        (["inspect", "torchvision:resnet57"], "torchvision has no network called 'resnet57'"),
        (["inspect", "torchvision:resnet51"], "did you mean 'resnet50'"),
        (["inspect", "none.py:net"], "no file at none.py"),
        (["inspect", "my_net.py"], "e.g. my_net.py:build"),
        (["inspect", "resnet20", "--input-shape", "3xx"], "write it like 3x224x224"),
        (["inspect", "resnet20", "--input-shape", "1x8x8"], "cannot take inputs of 1x8x8"),
        ([*PRUNE], "no limit"),
        ([*PRUNE, "--macs", "0"], "more than 0"),
        ([*PRUNE, "--macs", "150%"], "more than the whole network"),
        ([*PRUNE, "--macs", "50"], "did you mean 50%"),
        ([*PRUNE, "--macs", "3.5ms"], "has the wrong unit"),
        ([*PRUNE, "--macs", "50%", "--multiple-of", "eight"], "--multiple-of"),
        ([*PRUNE, "--latency", "quick"], "give milliseconds such as '3.5ms'"),
        ([*PRUNE, "--latency", "60%", "--backend", "tpu"], "choose one of eager"),
        ([*PRUNE, "--latency", "60%", "--latency-table", "nowhere.json"], "nowhere.json cannot be read"),
        ([*PRUNE, "--macs", "50%", "--latency-table", "nowhere.json"], "--latency-table is for --latency"),
        ([*PRUNE, "--macs", "50%", "--batch", "4"], "--batch is for --latency"),
        (["plan", "resnet20", "--macs", "50%"], "needs data"),
        ([*PRUNE, "--macs", "50%", "--metric", "l3"], "no metric 'l3'"),
        ([*PRUNE, "--macs", "50%", "--weights", "none.pt"], "no weights at none.pt"),
        (["prune", "resnet20", "--macs", "50%", "--method", "lcpp"], "Did you mean 'lcp'"),
        (["prune", "resnet20", "--macs", "50%"], "needs data"),
        (["prune", "resnet20", "--macs", "50%", "--data", "cifar10:/nowhere"], "no CIFAR-10 at /nowhere"),
        (["prune", "resnet20", "--macs", "50%", "--data", "digits"], "cannot take inputs of 1x8x8"),
        (["prune", "runs/none", "--macs", "50%"], "no run folder runs/none"),
        (["train", "resnet20"], "needs data"),
        (["train", "resnet20", "--data", "nothing"], "no data set is called 'nothing'"),
        (["evaluate", "digits_resnet", "--data", "digits", "--split", "dev"], "choose train, val or test"),
        (["latency", "resnet20", "--batch-sizes", "0"], "whole numbers from 1 up"),
        (["export", "resnet20", "--format", "tflite"], "choose one of onnx"),
        (["report", "."], "not a run folder"),
        (["report"], "Missing argument"),
        (
            ["pareto", "digits_resnet", "--data", "digits", "--learn", "never"],
            "choose one of 'sweep', 'tightest', 'each'",
        ),
        (["pareto", "digits_resnet", "--data", "digits", "--methods", "schedule"], "a frontier takes only lcp"),
        (["pareto", "digits_resnet", "--data", "digits", "--macs", "50%,0.5"], "names a limit twice"),
        (["pareto", "digits_resnet", "--data", "digits", "--macs", ","], "name at least one"),
        (["tune", "--resume"], "--resume needs --out"),
        (["evaluate", "digits_resnet", "--data", "digits", "--device", "cuda:99"], "--device cuda:99"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage(lcprune, arguments, words):
    said = lcprune(*arguments)
    assert said.code == 2, said.err
    assert words in said.err
    assert len(said.err.splitlines()) <= 2 and "Traceback" not in said.err
    assert list(Path().iterdir()) == []


def test_an_unreachable_limit_names_the_smallest_and_leaves_no_folder(lcprune):
    said = lcprune(*PRUNE, "--macs", "0.1%", "-q")
    assert said.code == 1
    assert "cannot be met" in said.err and "the smallest network has" in said.err
    assert list(Path().iterdir()) == []


def test_an_existing_folder_is_not_overwritten(lcprune):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("dear diary")
    for more, words in (([], "choose another folder"), (["--force"], "--force does not replace it")):
        said = lcprune(*PRUNE, "--macs", "50%", "--out", "mine", *more, "-q")
        assert said.code == 2 and words in said.err
    assert Path("mine/notes.txt").read_text() == "dear diary"


@pytest.mark.parametrize("name", ["plan.json", "model.safetensors"])
def test_a_damaged_network_is_named(lcprune, halved, name):
    shutil.copytree(halved["naive"], "half")
    whole = Path("half", name).read_bytes()
    Path("half", name).write_bytes(whole[: len(whole) // 2])
    said = lcprune("evaluate", "half", "--device", "cpu")
    assert said.code == 1
    assert name in said.err and len(said.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import nosuchpackage",
            "net.py:build cannot be imported: ModuleNotFoundError: No module named 'nosuchpackage'",
        ),
        ("def build(:", "net.py:build cannot be imported: SyntaxError"),
        ("def build(width, depth=2): ...", "net.py:build needs width, which lcprune does not give"),
        ("def build():\n    return 1 / 0", "net.py:build failed: ZeroDivisionError: division by zero (line 2)"),
    ],
)
@pytest.mark.parametrize("command", [["inspect"], ["evaluate", "digits_resnet", "--data"]])
def test_an_error_in_a_users_file_names_the_file(lcprune, command, source, words):
    Path("net.py").write_text(source + "\n")
    said = lcprune(*command, "net.py:build")
    assert said.code == 2 and words in said.err and len(said.err.splitlines()) <= 2


def test_a_file_that_holds_no_weights_is_named(lcprune):
    Path("weights.pt").write_text("hello")
    said = lcprune("inspect", "resnet20", "--weights", "weights.pt")
    assert said.code == 2 and "weights.pt is neither a .safetensors file nor a state dict" in said.err


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_network_with_too_few_outputs_is_refused(lcprune, command):
    said = lcprune(command, "digits_resnet", "--data", "digits", "--num-classes", "5")
    assert said.code == 2 and "has 5 outputs and digits has 10 classes" in said.err
    assert list(Path().iterdir()) == []


def test_data_of_another_shape_than_the_folders_network_is_refused(lcprune, trained):
    Path("rgb.py").write_text(
        "import numpy as np\n"
        "def build():\n"
        "    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 10\n"
        "    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y}\n"
    )
    said = lcprune("evaluate", trained, "--data", "rgb.py:build")
    assert said.code == 2 and "cannot take inputs of 3x8x8" in said.err


def test_a_limit_that_holds_already_is_said_to_be_none(lcprune):
    said = lcprune("prune", "resnet20", "--method", "naive", "--macs", "500M", "--no-report")
    assert said.code == 0 and "is no limit here: the whole network has 40.55 M" in said.err


def test_a_folder_that_cannot_be_written_is_named(lcprune):
    Path("notes").write_text("a file")
    said = lcprune(*PRUNE, "--macs", "50%", "--out", "notes/run", "-q")
    assert said.code == 2 and "notes/run cannot be written (Not a directory); choose another folder" in said.err


def test_a_run_without_its_network_is_explained(lcprune, trained):
    shutil.copytree(trained, "broken")
    Path("broken/model.safetensors").unlink()
    said = lcprune("evaluate", "broken")
    assert said.code == 2 and "did the run finish?" in said.err


def test_resuming_with_other_settings_is_refused(lcprune):
    lcprune(*PRUNE, "--macs", "50%", "--out", "a", "--no-report", "-q")
    said = lcprune("prune", "--out", "a", "--resume", "--macs", "30%", "-q")
    assert said.code == 2 and "macs='50%', now it is '30%'" in said.err


def test_debug_shows_where_it_happened(lcprune):
    assert "Traceback" in lcprune("inspect", "resnet57", "--debug").err


def test_a_full_disk_is_told_in_words(lcprune, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "plan.json")

    with monkeypatch.context() as patch:
        patch.setattr("lcprune.study.study.save", full)
        said = lcprune(*PRUNE, "--macs", "50%", "--out", "a", "--no-report", "-q")
    assert said.code == 1
    assert "the disk is full writing plan.json" in said.err and "--resume" in said.err
    assert lcprune("prune", "--out", "a", "--resume", "--no-report", "-q").code == 0
    assert Path("a/plan.json").is_file()


def test_a_full_disk_is_recognised_as_other_libraries_report_it():
    assert _in_words(RuntimeError("I/O error: No space left on device (os error 28)")).startswith("the disk is full")
