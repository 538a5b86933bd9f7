"""`lcprune` in a process of its own that sends itself a signal at an exact place, however busy the machine is.

python signalled.py {SIGINT,SIGKILL} {search,tuning} COUNT ARGUMENTS...: after COUNT candidates, or training steps
"""

from __future__ import annotations

import itertools
import signal
import sys
from typing import Any

import torch

from lcprune.cli import main
from lcprune.search.records import SearchRecords
from lcprune.tune.step import Stepper

PLACES: dict[str, tuple[type, str]] = {"search": (SearchRecords, "append"), "tuning": (Stepper, "step")}


def signal_at(number: signal.Signals, place: str, count: int) -> None:
    """Send a signal to this process once something has been done `count` times."""
    owner, name = PLACES[place]
    do, calls = getattr(owner, name), itertools.count(1)

    def counted(*arguments: Any) -> Any:
        result = do(*arguments)
        if next(calls) == count:
            signal.raise_signal(number)
        return result

    setattr(owner, name, counted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    signal_at(signal.Signals[sys.argv[1]], sys.argv[2], int(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
