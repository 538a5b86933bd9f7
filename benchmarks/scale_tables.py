"""The tables of docs/scale.md, from the records."""

from __future__ import annotations

import statistics
from typing import Any


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables of the page."""
    measured, small, given = record["measured"], record["overhead"], record["assumptions"]
    seconds = [f"{measured[key]:.1f} s" for key in ("local_s", "workers_1_s", "workers_2_s")]
    first = [
        "| | this process | one worker | two workers |",
        "|---|---|---|---|",
        f"| {measured['candidates']} candidates of ResNet-20 | {' | '.join(seconds)} |",
        f"| speed-up over one worker | | | {measured['speed_up']:.2f} |",
        f"| a candidate that costs nothing | {small['local_ms']:.2f} ms | {small['worker_ms']:.2f} ms | |",
        f"| of it in the leading process | | {small['lead_ms']:.2f} ms | |",
    ]
    assumed = [
        "| assumption | value | from |",
        "|---|---|---|",
        f"| judging a candidate | {given['seconds_per_candidate']:.2f} s | {given['source']} |",
        f"| its variation | {given['variation']:.0%} | measured here, with candidates of different sizes on a CPU |",
        f"| leading process, per candidate | {1e3 * given['lead_seconds']:.1f} ms | measured: overhead, and "
        "planning of ResNet-50 |",
        f"| way to a worker and back | {1e3 * given['way_seconds']:.1f} ms | measured: overhead |",
        f"| starting a worker | {given['start_seconds']:.0f} s | measured here |",
        f"| network and images | {given['case_bytes'] / 1e9:.2f} GB | measured, and 3000 x 3 x 224 x 224 floats |",
        f"| between machines | {given['bandwidth'] * 8 / 1e9:.0f} Gbit/s | assumed |",
        f"| GPUs per machine | {given['gpus_per_machine']} | assumed |",
    ]
    simulated = [
        "| workers | together | speed-up | asynchronous | speed-up | pool of W | speed-up "
        "| 4000 candidates | speed-up |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["simulated"]:
        names = ("together", "asynchronous", "wide", "long")
        cells = [f"{row[name]:.0f} s | {row[f'{name}_speed_up']:.1f}" for name in names]
        simulated.append(f"| {row['workers']} | {' | '.join(cells)} |")
    found = ["| W | how | first pool | best difference | naive |", "|---|---|---|---|---|"]
    words = {
        "random": "random search",
        "together": "together",
        "asynchronous": "asynchronous",
        "wide": "together, pool of W",
    }
    for row in record["quality"]:
        spread = statistics.stdev(row["best"]) if len(row["best"]) > 1 else 0.0
        cells = [str(row["workers"]), words.get(row["kind"], row["kind"]), str(row["pool"])]
        cells += [f"{statistics.mean(row['best']):.3f} ± {spread:.3f}", f"{statistics.mean(row['naive']):.3f}"]
        found.append(f"| {' | '.join(cells)} |")
    return {
        name: "\n".join(lines)
        for name, lines in (("measured", first), ("assumptions", assumed), ("simulated", simulated), ("quality", found))
    }


def renewed(page: str, record: dict[str, Any]) -> str:
    """The page with its tables made from the records."""
    for name, table in tables(record).items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        page = before + start + table + "\n" + end + rest.partition(end)[2]
    return page
