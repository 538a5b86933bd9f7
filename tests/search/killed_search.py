"""A search on a digits network that kills itself at an exact place, however busy the machine is.

python killed_search.py FOLDER WEIGHTS COUNT: once COUNT more lines are in the records
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import digit_networks

import lcprune
from lcprune.search.records import SearchRecords
from searching import searching


def prune(folder: Path, weights: Path) -> Any:
    """Prune the network, or go on with it."""
    images, labels, _, _ = digit_networks.digits()
    model = digit_networks.plain(width=8)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return lcprune.prune(
        model.eval(),
        images[:2],
        macs=0.4,
        metric="taylor",
        **searching(digit_networks.batches(images, labels), pool=6, iterations=18, sample=4, images=100, after="cut"),
        run=lcprune.Job(folder, resume=True),
        progress=False,
    )


def kill_after(count: int) -> None:
    """End this process without a word after so many lines of records."""
    write, calls = SearchRecords._write, itertools.count(1)

    def counted(self: SearchRecords, line: Any) -> None:
        write(self, line)
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    SearchRecords._write = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill_after(int(sys.argv[3]))
    prune(Path(sys.argv[1]), Path(sys.argv[2]))
