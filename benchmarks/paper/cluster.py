"""Run the cells of the paper's tables and figures on a Ray cluster: each a task with its share of a GPU.

    python benchmarks/paper/cluster.py --data cifar10:PATH --out runs/paper --address auto --gpus 0.25
    python benchmarks/paper/cluster.py --data digits --out runs/tiny --tiny --only 'digits_resnet/frontier/*'

The cells, their folders and what they record are those of `run.py`, which does the same on one machine and against the
clock. Here cells whose machine dies are begun again elsewhere and go on from what they had written. Every machine needs
this checkout, and the data, at the same path.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

from lcprune.engine import RayEngine  # noqa: E402
from lcprune.engine.desk import Mirror  # noqa: E402
from paper.cells import DONE, Cell, chosen, registry  # noqa: E402
from paper.scale import PAPER, TINY  # noqa: E402


def main() -> None:
    """Wave after wave: all cells whose needs are done."""
    options = arguments()
    cells = chosen(registry(TINY if options.tiny else PAPER), options.only, options.show)
    failed = 0
    with RayEngine(options.address, options.workers) as engine:
        options.out.mkdir(parents=True, exist_ok=True)
        folder = engine.folder(options.out)
        given = (str(BENCHMARKS), options.data, options.tiny, options.precision)
        while wave := ready(cells, options.out):
            names = [cell.name for cell in wave]
            items = [(given, folder, cell.name, tuple(cell.needs)) for cell in wave]
            for index, finished in engine.map(
                work, items, names=names, gpus=options.gpus, title="cells", progress=True
            ):
                failed += not finished
                print(f"{'done' if finished else 'unfinished':>10} {names[index]}", flush=True)
            if failed:
                break
    sys.exit(f"{failed} cells did not finish" if failed else 0)


def ready(cells: list[Cell], out: Path) -> list[Cell]:
    """Cells that are not done, and whose needs are."""

    def done(name: str) -> bool:
        return (out / name / DONE).is_file()

    return [cell for cell in cells if not done(cell.name) and all(map(done, cell.needs))]


def work(item: tuple[tuple[str, str, bool, str], Any, str, tuple[str, ...]]) -> bool:
    """In a task: do one cell, in a folder that is mirrored into the one of `--out`."""
    (benchmarks, spec, tiny, precision), folder, name, needs = item
    if benchmarks not in sys.path:
        sys.path.insert(0, benchmarks)
    # Imported, not sent along: so a process keeps data and networks from one cell to the next.
    from paper import cluster
    from paper.cells import registry
    from paper.scale import PAPER, TINY

    bench = cluster.bench(spec, tiny, precision)
    for need in needs:
        folder.at(need).fetch(bench.out / need)
    with Mirror(bench.out / name, folder.at(name)):
        return bool(bench.run(registry(TINY if tiny else PAPER)[name]))


@cache
def bench(spec: str, tiny: bool, precision: str) -> Any:
    """What this process keeps between cells."""
    from lcprune.engine.worker import own_device
    from paper.work import Bench

    out = Path(tempfile.gettempdir()) / f"lcprune-paper-{os.getpid()}"
    return Bench(spec, out, TINY if tiny else PAPER, str(own_device()), precision=precision)


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="e.g. cifar10:PATH")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells")
    parser.add_argument("--only", nargs="+", default=[], help="patterns of names, e.g. 'resnet56/tune/*'")
    parser.add_argument("--show", nargs="+", default=[], help="what a table or figure needs: table-1, figure-3 ...")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on digits, to try the whole way")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"], help="of tuning on a GPU")
    parser.add_argument("--address", help="of the cluster; that of this machine, or a new one, by default")
    parser.add_argument("--workers", type=int, help="cells at the same time, where --gpus does not say")
    parser.add_argument("--gpus", type=float, help="share of a GPU per cell, e.g. 0.25")
    return parser.parse_args()


if __name__ == "__main__":
    main()
