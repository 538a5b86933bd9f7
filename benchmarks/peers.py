"""lcprune beside Torch-Pruning: the same networks, the same limit, the same check.

    pip install --no-deps torch-pruning
    python benchmarks/peers.py cut --only 'torchvision:*'
    python benchmarks/peers.py imagenet --network resnet50 --data FOLDER --weights FOLDER
    python benchmarks/peers.py tune --data cifar10.npz --weights benchmarks/paper/baselines
    python benchmarks/peers.py show

`cut` halves the MACs of the networks of torchvision and timm in coverage_models.txt by magnitude, with both libraries,
each in a process of its own, and checks the result by a means that belongs to neither (peers_one.py). `imagenet` and
`tune` compare accuracies (peers_accuracy.py). Each goes on where it stopped, and keeps its rows in
benchmarks/results/peers*.json. `show` prints the tables of docs/compared.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import imagenet
import peers_accuracy
import peers_one
from coverage import RESULTS as COVERAGE
from coverage import listed
from peers_accuracy import peer
from peers_one import TARGET, TOOLS

from lcprune.files import write_json
from lcprune.vision import import_timm, import_torchvision

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "peers.json"
KINDS = ("cnn", "segmentation", "video")
# Where a cut can end, the good end first.
VERDICTS = {
    "right": "right, limit met",
    "too large": "right, limit missed",
    "outputs": "other outputs than meant",
    "weights": "weights that the original has not",
    "output shapes": "outputs of another shape",
    "run": "does not run",
    "cut": "not cut: an error",
    "time": "not cut in time",
}


def cut(options: argparse.Namespace) -> None:
    """Every network by every tool; one record each."""
    records = stored(options)
    import_torchvision(), import_timm()  # once, not in every child
    known = {(record["model"], record["tool"]) for record in records}
    fork = multiprocessing.get_context("fork")
    todo, done = fork.SimpleQueue(), fork.SimpleQueue()
    names = [name for name in measurable() if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    wanted = [(name, tool) for name in names for tool in TOOLS if (name, tool) not in known]
    for _ in range(options.jobs):
        fork.Process(target=take_turns, args=(todo, done, options)).start()
    for work in [*wanted, *[None] * options.jobs]:
        todo.put(work)
    places = {name: place for place, name in enumerate(listed())}
    for _ in wanted:
        records.append(record := done.get())
        records.sort(key=lambda record: places.get(record["model"], len(places)))
        write_json(options.out, {"records": records, "torch": torch.__version__, "peer": peer()}, indent=1)
        print(f"{record['model']:40} {record['tool']:14} {record['verdict']:14} {record.get('error', '')}", flush=True)


def take_turns(todo: Any, done: Any, options: argparse.Namespace) -> None:
    """One of those who work side by side."""
    kinds = measurable()
    for name, tool in iter(todo.get, None):
        done.put(run_one(name, kinds[name], tool, options))


def run_one(name: str, kind: str, tool: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one network; too long is a record too."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        record = {"model": name, "kind": kind, "tool": tool, "verdict": "build"}
        # Forked: what takes long to import is there already.
        child = multiprocessing.get_context("fork").Process(
            target=peers_one.main, args=(record, out, options.seconds, options.memory_gb)
        )
        child.start()
        child.join()
        if out.exists():
            return json.loads(out.read_text())
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return record | {"verdict": "time", "error": f"took more than {options.seconds} s of a core"}
        return record | {"verdict": "cut", "error": f"exit status {child.exitcode}"}


def measurable() -> dict[str, str]:
    """Name -> kind of the networks that can be checked: nothing in them is normalised over channels."""
    mixing = {record["model"] for record in json.loads(COVERAGE.read_text())["records"] if record.get("mixing")}
    names = {name: kind for name, kind in listed().items() if name.startswith(("torchvision:", "timm:"))}
    return {name: kind for name, kind in names.items() if kind in KINDS and name not in mixing}


def stored(options: argparse.Namespace) -> list[dict[str, Any]]:
    return json.loads(options.out.read_text())["records"] if options.out.exists() else []


def show(options: argparse.Namespace) -> None:
    """All tables, as Markdown."""
    show_cuts(options)
    accuracies = {what: imagenet.stored(argparse.Namespace(out=file)) for what, file in peers_accuracy.RESULTS.items()}
    peers_accuracy.show_imagenet(accuracies["imagenet"], imagenet.stored(argparse.Namespace(out=imagenet.RESULTS)))
    peers_accuracy.show_tuning(accuracies["tune"])


def show_cuts(options: argparse.Namespace) -> None:
    """How cuts end, how near the limit is met, how long they take."""
    records = [r for r in stored(options) if r["verdict"] != "build"]
    by_tool = {tool: {r["model"]: r for r in records if r["tool"] == tool} for tool in TOOLS}
    common = [name for name in by_tool["lcprune"] if all(name in by_tool[tool] for tool in TOOLS)]
    print(f"\n{len(common)} networks:\n\n| | " + " | ".join(TOOLS) + " |\n|---|" + "---|" * len(TOOLS))
    for verdict, words in VERDICTS.items():
        counts = [sum(by_tool[tool][name]["verdict"] == verdict for name in common) for tool in TOOLS]
        if any(counts):
            print(f"| {words} | " + " | ".join(map(str, counts)) + " |")
    both = [name for name in common if all(by_tool[tool][name]["verdict"] == "right" for tool in TOOLS)]
    if both:
        ours, theirs = ([by_tool[tool][name] for name in both] for tool in TOOLS)
        below = [statistics.median(100 * (TARGET - record["macs"]) for record in records) for records in (ours, theirs)]
        print(f"| MACs below the limit, in points (median of {len(both)}) | {below[0]:.2f} | {below[1]:.2f} |")
        seconds = [statistics.median(record["trace_s"] for record in records) for records in (ours, theirs)]
        print(f"| seconds of one core, trace (median) | {seconds[0]:.1f} | {seconds[1]:.1f} |")
        steps = statistics.median(record["steps"] for record in theirs)
        seconds = [statistics.median(record["cut_s"] for record in records) for records in (ours, theirs)]
        print(f"| trace and cut (median) | {seconds[0]:.1f} | {seconds[1]:.1f}, in {steps:.0f} steps |")
        proved = statistics.median(record["cut_s"] + record["verify_s"] for record in ours)
        print(f"| trace, cut and proof (median) | {proved:.1f} | has none |")
    for tool, found in by_tool.items():
        wrong = [f"{name} ({VERDICTS[found[name]['verdict']]})" for name in common if found[name]["verdict"] != "right"]
        print(f"\n{tool}, not right: {', '.join(wrong) or 'none'}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cut", "imagenet", "tune", "show"])
    parser.add_argument("--out", type=Path, help="the record, if not benchmarks/results/peers*.json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    cut_only = parser.add_argument_group("cut")
    cut_only.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    cut_only.add_argument("--seconds", type=int, default=300, help="of a core that one network may take")
    cut_only.add_argument("--jobs", type=int, default=1, help="networks side by side")
    cut_only.add_argument("--memory-gb", type=float, default=12)
    both = parser.add_argument_group("imagenet and tune")
    both.add_argument("--data", help="as in imagenet:PATH, or CIFAR-10: an npz file or the folder of its batches")
    both.add_argument("--weights", type=Path, help="folder with NETWORK.safetensors, or resnet56-seed-SEED.safetensors")
    both.add_argument("--plans", type=Path, default=HERE.parent / "runs" / "peers", help="folder for plans")
    both.add_argument("--methods", nargs="+", choices=peers_accuracy.WORDS)
    both.add_argument("--limits", nargs="+")
    both.add_argument("--seeds", type=int, nargs="+", help="imagenet: 0; tune: 1 2 3, each with its own baseline")
    both.add_argument("--candidates", type=int, default=400, help="of a search")
    both.add_argument("--metric", default="auto", help="that ours rank units by; auto: each method's own")
    both.add_argument("--images", type=int, default=1000, help="that a search and Taylor's ranking see")
    one = parser.add_argument_group("imagenet")
    one.add_argument("--network", default="mobilenet_v2", choices=imagenet.NETWORKS)
    one.add_argument("--cache", type=Path, help="folder for decoded images")
    one.add_argument("--ways", nargs="+", default=imagenet.WAYS, choices=list(imagenet.WORDS), help="of repair")
    one.add_argument("--calibrate", type=int, help="images to work with, if not two of five")
    one.add_argument("--judge", type=int, help="images to judge by, if not three of five")
    one.add_argument("--batch", type=int, default=250, help="images at a time, when networks are judged")
    other = parser.add_argument_group("tune")
    other.add_argument("--epochs", type=int, default=20)
    other.add_argument("--val", type=int, default=5000, help="training images that are held out")
    other.add_argument("--train", type=int, help="only so many images, for a trial")
    parser.set_defaults(multiple_of=None)  # that imagenet.py can ask for
    options = parser.parse_args()
    if options.what in peers_accuracy.RESULTS:
        options.methods = options.methods or peers_accuracy.METHODS[options.what]
        options.limits = options.limits or peers_accuracy.LIMITS[options.what]
        options.seeds = options.seeds or ([0] if options.what == "imagenet" else [1, 2, 3])
        options.out = options.out or peers_accuracy.RESULTS[options.what]
    options.out = options.out or RESULTS
    work = {"cut": cut, "imagenet": peers_accuracy.of_imagenet, "tune": peers_accuracy.of_tuning, "show": show}
    work[options.what](options)


if __name__ == "__main__":
    main()
