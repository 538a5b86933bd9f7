"""Our best network at half the MACs: chosen on validation images, then, once, on the test images.

    python benchmarks/paper/run.py --data cifar10:PATH --out runs/paper --show best
    python benchmarks/paper/best.py --data cifar10:PATH --runs runs/paper

Writes benchmarks/paper/results/best.json. A record that is there already is not made again, unless there are new
candidates (`--again`): looking at the test images of several networks in turn would be choosing on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import torch  # noqa: E402

import lcprune  # noqa: E402
from lcprune.files import write_json  # noqa: E402
from lcprune.runs import RunFolder  # noqa: E402
from paper.cells import registry  # noqa: E402
from paper.scale import PAPER, TINY, Scale  # noqa: E402
from paper.store import RESULTS  # noqa: E402
from paper.work import Bench, is_done  # noqa: E402


def candidates(runs: Path, scale: Scale) -> dict[str, float]:
    """Validation accuracy of every finished candidate."""
    names = [name for name, cell in registry(scale).items() if cell.kind == "tune" and "/best/" in name]
    names += [f"{scale.network}/tune/{method}-50/1" for method in ("naive", "sweep", "each")]
    return {
        name: RunFolder.open(runs / name).records("results")[0]["val_accuracy"] for name in names if is_done(runs, name)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--again", action="store_true", help="choose anew among more candidates")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    scale = TINY if options.tiny else PAPER
    found = candidates(options.runs, scale)
    record = options.results / "best.json"
    if not found:
        sys.exit(f"no candidate is finished in {options.runs}")
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))["candidates"]
        if not (options.again and set(found) > set(known)):
            sys.exit(f"{record} exists; with more candidates than its {len(known)}, --again chooses anew")
    chosen = max(found, key=lambda name: found[name])
    bench = Bench(options.data, options.runs, scale, options.device)
    model = lcprune.load(options.runs / chosen, bench.network(scale.network))
    judged = bench.judge(model, "test", "test_")
    write_json(record, {"chosen": chosen, **judged, "candidates": found})
    print(f"{chosen}: validation {found[chosen]:.4f}, test {judged['test_accuracy']:.4f}")


if __name__ == "__main__":
    main()
