"""The paper's baselines on CIFAR-10: ResNet-56, VGG and MobileNetV2, 200 epochs each, side by side.

    python benchmarks/paper/baselines.py --data cifar10.npz --out runs/baselines --minutes 9

One process per network. Each writes OUT/NETWORK/ (recipe, metrics, checkpoint), and when finished
OUT/NETWORK.json (recipe, accuracy on validation and test, every epoch) and OUT/NETWORK.safetensors. After
`--minutes` a network that is not done writes its checkpoint and leaves; the same command goes on with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from lcprune import data, models, tune
from lcprune.files import write_json
from lcprune.tune.checkpoint import save_weights

PAPER = {"resnet56": 0.9418, "vgg16": 0.919}


def train(name: str, arguments: argparse.Namespace) -> None:
    """Train one network, or go on with it."""
    out: Path = arguments.out
    dataset = data.load(f"cifar10:{arguments.data}", seed=0, val=arguments.val)
    device = torch.device(arguments.device)
    changes: dict[str, Any] = {
        "epochs": arguments.epochs,
        "precision": arguments.precision,
        "seed": arguments.seed,
    }
    # The rate that is usual for this VGG: its three linear layers have no normalisation to hold 0.1.
    rate = {"vgg16": 0.05}.get(name, 0.1)
    recipe = tune.recipe(
        "baseline",
        **changes,
        lr=rate,
        eval_every=arguments.eval_every,
        compile=name in arguments.compile,
        channels_last=name not in arguments.channels_first,
    )
    torch.manual_seed(arguments.seed)
    model = models.build(name, num_classes=10)
    result = tune.fit(
        model,
        dataset,
        recipe,
        run_dir=out / name,
        resume=True,
        progress=True,
        device=device,
        checkpoint_seconds=60,
        max_seconds=None if arguments.minutes is None else 60 * arguments.minutes - (time.time() - arguments.began),
    )
    report: dict[str, Any] = {
        "network": name,
        "finished": result.finished,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "training_images": len(dataset.train),
        "validation_images": len(dataset.val),
        "paper_accuracy": PAPER.get(name),
        "seconds": round(result.seconds, 1),
        "images_per_second": result.images_per_second if result.history else None,
        "recipe": recipe.to_json(),
    }
    if result.finished:
        # The one look at the test images.
        report["test_loss"], report["test_accuracy"] = tune.evaluate(model, dataset, "test", device=device)
        save_weights(out / f"{name}.safetensors", model, {"test_accuracy": f"{report['test_accuracy']:.4f}"})
    report["history"] = result.history
    write_json(out / f"{name}.json", report, indent=1)
    state = f"test accuracy {report['test_accuracy']:.4f}" if result.finished else "not finished"
    print(
        f"{name}: {len(result.history)} of {recipe.epochs} epochs, {state}, {result.seconds:.0f} s, "
        f"{result.images_per_second:,.0f} images/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10: an npz file or the folder of its batches")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["resnet56", "vgg16", "mobilenetv2"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--minutes", type=float, help="checkpoint and leave after so long")
    parser.add_argument("--val", type=int, default=5000, help="training images held out")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--compile", nargs="*", default=[], help="networks to run through torch.compile")
    parser.add_argument("--channels-first", nargs="*", default=[], help="networks to keep in this layout")
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=time.time(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        for name in arguments.networks:
            train(name, arguments)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    children = {}
    for name in arguments.networks:
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        command += ["--one", "--began", str(arguments.began), "--networks", name]
        log = open(arguments.out / f"{name}.log", "a")  # noqa: SIM115 - lives as long as the child
        children[name] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), log)
    failed = []
    shown = time.monotonic()
    while children:
        time.sleep(0.5)
        for name, (child, log) in list(children.items()):
            if child.poll() is not None:
                log.close()
                tail = (
                    (arguments.out / f"{name}.log")
                    .read_text()
                    .strip()
                    .splitlines()[-1 if child.returncode == 0 else -25 :]
                )
                print("\n".join(tail), flush=True)
                failed += [name] if child.returncode else []
                del children[name]
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            for name in children:
                print(f"{time.time() - arguments.began:.0f} s: {name} {_last(arguments.out / name)}", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _last(folder: Path) -> str:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    if not lines:
        return "has finished no epoch"
    record = json.loads(lines[-1])
    looked = [json.loads(line) for line in lines[-10:]]
    accuracy = next((r["val_accuracy"] for r in reversed(looked) if r["val_accuracy"] is not None), None)
    return (
        f"epoch {record['epoch']}, loss {record['train_loss']:.3f}, validation {accuracy}, "
        f"{record['images_per_second']:,.0f} images/s"
    )


if __name__ == "__main__":
    main()
