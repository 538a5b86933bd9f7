"""`python -m tests.fuzz --minutes 10 --seed 0`: look for networks that are cut wrongly.

Every network that fails is made small, printed and written to a folder. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
import warnings
from pathlib import Path

import torch

from .laws import Failure, Report, check
from .programs import build, random_program
from .shrink import reproducer, shrink


def fuzz(seeds: itertools.count[int] | range, out: Path | None, seconds: float, shrink_for: float = 20.0) -> int:
    """Check one random network per seed until the time is over.

    Args:
        seeds: of the networks.
        out: the folder for what fails; None writes nothing.
        seconds: wall-clock time.
        shrink_for: CPU seconds for making one failure small.

    Returns:
        The number of networks that failed.
    """
    began, shown, failures = time.monotonic(), 0.0, 0
    reports: list[Report] = []
    for seed in seeds:
        if time.monotonic() - began > seconds:
            break
        program = random_program(seed)
        torch.set_default_dtype(getattr(torch, program.dtype))
        try:
            reports.append(check(build(program), seed))
        except Failure as failure:
            failures += 1
            smaller, found = shrink(program, failure, seed, shrink_for)
            text = reproducer(smaller, found)
            print(f"\n# seed {seed}\n{text}", flush=True)
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                (out / f"{failure.law.replace(' ', '_')}_{seed}.py").write_text(text)
        finally:
            torch.set_default_dtype(torch.float32)
        if sys.stderr.isatty() and time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r{_line(reports, failures, shown - began)}", end="", file=sys.stderr, flush=True)
    print(_line(reports, failures, time.monotonic() - began))
    return failures


def _line(reports: list[Report], failures: int, seconds: float) -> str:
    count = len(reports) + failures
    cut = [report.units for report in reports if report.units]
    shares = {
        name: sum(getattr(report, name) for report in reports) for name in ("oracle", "wrong", "repaired", "refused")
    }
    return (
        f"{count} networks, {count / max(seconds, 1e-9) * 60:.0f}/min, {failures} failed, {len(cut)} could be cut "
        f"({sum(cut)} units, {sum(report.removed for report in reports)} removed); {shares['oracle']} by the oracle, "
        f"{shares['wrong']} wrong cuts seen, {shares['repaired']} repaired, {shares['refused']} selections refused"
    )


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first network; the next one has the next seed")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder for what fails")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lcprune").setLevel(logging.ERROR)
    return int(fuzz(itertools.count(options.seed), options.out, options.minutes * 60) > 0)


if __name__ == "__main__":
    sys.exit(main())
