"""Keep LcP's tuned frontier: benchmarks/paper/frontier/LIMIT/, plan and weights, kernels in half precision.

    python benchmarks/paper/checkpoints.py --data cifar10:PATH --runs runs/paper

A kept network is loaded again and judged on the validation images, beside what the tuned one had.

    model = lcprune.load("benchmarks/paper/frontier/50", lcprune.models.build("resnet56"))
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import lcprune  # noqa: E402
from lcprune.files import atomic_write, write_json  # noqa: E402
from lcprune.runs import RunFolder  # noqa: E402
from paper.cells import percent  # noqa: E402
from paper.scale import PAPER, TINY  # noqa: E402
from paper.work import Bench, is_done  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "frontier")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    scale = TINY if options.tiny else PAPER
    bench = Bench(options.data, options.runs, scale, options.device)
    for limit in sorted(scale.limits):
        name = f"{scale.network}/tune/sweep-{percent(limit)}/1"
        if not is_done(options.runs, name):
            print(f"{name} is not finished")
            continue
        source, target = options.runs / name, options.out / percent(limit)
        tensors = load_file(source / "model.safetensors")
        # Statistics, scales and shifts are few and span magnitudes: they stay as they are.
        small = {key: tensor.half() if tensor.ndim > 1 else tensor for key, tensor in tensors.items()}
        with atomic_write(target / "model.safetensors") as path:
            save_file(small, path, metadata={"format": "pt"})
        lcprune.Plan.load(source / "plan.json").save(target / "plan.json")
        (row,) = RunFolder.open(source).records("results")
        kept = bench.judge(lcprune.load(target, bench.network(scale.network)), "val", "val_")
        told = {key: row[key] for key in ("macs", "params", "val_accuracy", "accuracy")}
        write_json(target / "accuracy.json", {**told, "val_accuracy_kept": kept["val_accuracy"]})
        print(f"{name}: validation {row['val_accuracy']:.4f}, as kept {kept['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
