"""`lcprune` in a process of its own that is sent SIGINT at an exact place, however busy the machine is.

python interrupted.py {search,tuning} COUNT ARGUMENTS...: after COUNT candidates, or training steps
"""

from __future__ import annotations

import itertools
import signal
import sys
from typing import Any

import torch

from lcprune.cli import main
from lcprune.search.records import Records
from lcprune.tune.step import Stepper

PLACES: dict[str, tuple[type, str]] = {"search": (Records, "append"), "tuning": (Stepper, "step")}


def interrupt_at(place: str, count: int) -> None:
    """Send SIGINT to this process once something has been done `count` times."""
    owner, name = PLACES[place]
    do, calls = getattr(owner, name), itertools.count(1)

    def counted(*arguments: Any) -> Any:
        result = do(*arguments)
        if next(calls) == count:
            signal.raise_signal(signal.SIGINT)
        return result

    setattr(owner, name, counted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    interrupt_at(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
