"""Which networks can be traced, cut to half of their MACs, run, verified, saved and trained: a process per network.

    python benchmarks/coverage.py                    # goes on where it stopped
    python benchmarks/coverage.py --only 'timm:res2*' --again
    python benchmarks/coverage.py --table            # only rewrites docs/coverage.md from the records

Records go to benchmarks/results/coverage.json, one per network, and into the table of docs/coverage.md.
Networks come from torchvision, timm, ultralytics, segmentation-models-pytorch (smp), transformers, monai, pytorchcv,
diffusers and kornia; those of a library that is not installed are skipped.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from coverage_foreign import distribution, library

from lcprune.files import atomic_write, write_json

HERE = Path(__file__).parent
MODELS = HERE / "coverage_models.txt"
RESULTS = HERE / "results" / "coverage.json"
TABLE = HERE.parent / "docs" / "coverage.md"


def listed() -> dict[str, str]:
    """Model name -> kind, in the order of the list."""
    models = {}
    for line in MODELS.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            models[words[0]] = words[1] if len(words) > 1 else "cnn"
    return models


def run_one(model: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record of one network; a crash, a timeout or too little memory is a record too."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        command = [sys.executable, str(HERE / "coverage_one.py"), model, "--kind", kind, "--out", str(out)]
        command += ["--memory-gb", str(options.memory_gb)]
        command += ["--export-times"] if options.export_times else []
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if options.jobs > 1 else {}
        started = time.perf_counter()
        failure = {"model": model, "kind": kind, "ok": False, "stage": "process"}
        try:
            done = subprocess.run(
                command, timeout=options.seconds, env=os.environ | threads, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return failure | {"error": f"took more than {options.seconds} s"}
        if not out.exists():
            tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return failure | {"error": f"exit status {done.returncode}: {tail[:300]}"}
        record = json.loads(out.read_text())
        record |= {
            "total_s": round(time.perf_counter() - started, 1),
            "library": library(model),
            "torch": torch.__version__,
        }
        return record


def summary(records: list[dict[str, Any]]) -> str:
    """One row per kind of network."""
    lines = [
        "| networks | run and verified | limit of 50 % met | trace, median s | frozen channels, median |",
        "|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys((record["model"].split(":")[0], record["kind"]) for record in records))
    for source, kind in kinds:
        rows = [r for r in records if r["kind"] == kind and r["model"].startswith(source + ":")]
        good = [r for r in rows if r["ok"]]
        reached = sum(r.get("reached", False) for r in good)
        seconds = sorted(r["trace_s"] for r in good) or [float("nan")]
        frozen = sorted(r["frozen_share"] for r in good) or [float("nan")]
        lines.append(
            f"| {source}, {kind} | {len(good)} of {len(rows)} | {reached} of {len(rows)} "
            f"| {seconds[len(seconds) // 2]:.1f} | {frozen[len(frozen) // 2]:.1%} |"
        )
    return "\n".join(lines)


def table(records: list[dict[str, Any]]) -> str:
    """The page: what was measured, the summary, one row per network, failures with their message."""
    timed = [r for r in records if r["ok"] and "export_s" in r]
    libraries = sorted({f"{r['library']} (torch {r['torch']})" for r in records if "library" in r})
    ratios = sorted((r["trace_s"] / max(r["export_s"], 1e-3), r["model"]) for r in timed)
    slow = [f"{model} ({ratio:.1f})" for ratio, model in reversed(ratios) if ratio > 2]
    slowest = f", most of all {', '.join(slow[:5])}" if slow else ""
    dense = ""
    if any("dense part" in _kind(record) for record in records):
        dense = 'Those marked "dense part" were measured without their box handling, as its operators did not load. '
    lines = [
        "# Coverage",
        "",
        "What `lcprune` can prune, tried on many networks. It has no special case for any of them.",
        "",
        "Each network is built with random weights, traced, cut to at most 50 % of its multiply-adds (MACs) by a "
        "random ranking of all channels, run, and verified against the original with the removed channels at zero. "
        "At least 10 % of each group (channels of layers that are cut together) stays. MACs and parameters are "
        "compared with what torch counts, before and after. The result is saved, loaded into a freshly built network "
        "and trained for one step.",
        "",
        "- Input sizes are the smallest of 64, 96, 128 and the network's own at which it runs and trains.",
        "- Frozen channels cannot go: the network's outputs, and what lcprune cannot follow. `lcprune inspect` names "
        "them.",
        "- Detectors of torchvision are cut as a whole, with 16 proposals and 8 boxes per image. "
        f"{dense}"
        "Those of ultralytics give their boxes before non-maximum suppression, and the features they come from.",
        "- smp is segmentation-models-pytorch.",
        '- "(smallest)": the limit cannot be met, so the smallest network was cut instead.',
        '- "(mixing)": some channels are normalised or summed up together, where a channel of zeros is not the same '
        "as none.",
        "- `benchmarks/coverage_models.txt` lists the networks; `benchmarks/results/coverage.json` has every record.",
        "- Seconds are those of one core.",
        "",
        f"{', '.join(libraries)}. Made by `python benchmarks/coverage.py --export-times`.",
        "",
        summary(records),
        "",
    ]
    if ratios:
        lines += [
            f"Tracing takes {ratios[len(ratios) // 2][0]:.2f} times as long as `torch.export` alone "
            f"(median of {len(ratios)} networks); {len(slow)} take more than twice as long{slowest}.",
            "",
        ]
    failed = [r for r in records if not r["ok"]]
    if failed:
        lines += ["## Not covered", "", "| network | stage | message |", "|---|---|---|"]
        lines += [f"| {r['model']} | {r['stage']} | {r.get('error', '').replace('|', '/')} |" for r in failed]
        lines.append("")
    lines += [
        "## Every network",
        "",
        "| network | kind | input | MACs (M) | MACs left | parameters left | groups | frozen channels "
        "| largest error | trace s | verify s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        if r["ok"]:
            left = f"{r['macs_after']:.2%}" + ("" if r["reached"] else " (smallest)")
            mixing = f"{r['max_error']:.0e}" + (" (mixing)" if r["mixing"] else "")
            lines.append(
                f"| {r['model']} | {_kind(r)} | {'x'.join(map(str, r['input'][1:]))} "
                f"| {r['macs'] / 1e6:.1f} | {left} | {r['params_after']:.1%} | {r['groups']} "
                f"| {r['frozen_share']:.1%} | {mixing} | {r['trace_s']:.1f} | {r['verify_s']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def _kind(record: dict[str, Any]) -> str:
    dense = record["kind"] == "detection" and not record.get("whole")
    return f"{record['kind']}, dense part" if dense else str(record["kind"])


def write(records: dict[str, dict[str, Any]]) -> None:
    """Write records and page, in the order of the list."""
    ordered = [records[model] for model in listed() if model in records]
    write_json(RESULTS, {"records": ordered}, indent=1)
    with atomic_write(TABLE) as temporary:
        temporary.write_text(table(ordered), encoding="utf-8")


def main() -> int:
    """Run what is missing; 1 if a network of the selection failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="a pattern of names, e.g. 'torchvision:resnet*'")
    parser.add_argument("--again", action="store_true", help="also networks that have a record")
    parser.add_argument("--failed", action="store_true", help="also networks whose record is a failure")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=600, help="time limit of one network")
    parser.add_argument("--memory-gb", type=float, default=12, help="address space limit of one network")
    parser.add_argument("--export-times", action="store_true", help="also time torch.export alone")
    parser.add_argument("--table", action="store_true", help="only rewrite the page")
    options = parser.parse_args()
    records = {r["model"]: r for r in json.loads(RESULTS.read_text())["records"]} if RESULTS.exists() else {}
    chosen = {m: k for m, k in listed().items() if not options.only or fnmatch.fnmatch(m, options.only)}
    for missing in dict.fromkeys(distribution(model) for model in chosen if not library(model)):
        print(f"skipped: {missing} is not installed")
    chosen = {model: kind for model, kind in chosen.items() if library(model)}

    def due(model: str) -> bool:
        known = records.get(model)
        return known is None or options.again or (options.failed and not known["ok"])

    todo = [] if options.table else [model for model in chosen if due(model)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for record in pool.map(lambda model: run_one(model, chosen[model], options), todo):
            records[record["model"]] = record
            write(records)
            verdict = "ok" if record["ok"] else f"FAILED at {record['stage']}: {record.get('error')}"
            left = f" {record['macs_after']:.1%} of MACs," if "macs_after" in record else ""
            frozen = f" {record['frozen_share']:.0%} frozen," if "frozen_share" in record else ""
            print(f"{record['model']}:{left}{frozen} {verdict}", flush=True)
    write(records)
    failed = [model for model in chosen if model in records and not records[model]["ok"]]
    measured = sum(model in records for model in chosen)
    print(f"{measured - len(failed)} of {len(chosen)} ok, {len(failed)} failed, {len(chosen) - measured} not measured")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
