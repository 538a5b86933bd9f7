"""How well tables predict latency, and what a latency limit is worth beside a limit on MACs.

    python benchmarks/latency.py --device cpu                       # writes benchmarks/results/latency-cpu.json
    python benchmarks/latency.py --device cuda --data cifar10:PATH  # writes benchmarks/results/latency-cuda.json
    python benchmarks/latency.py --only loss --networks digits_resnet
    python benchmarks/latency.py --write-docs                       # puts what was recorded into the documentation

A piece is one network, backend and batch size, of one kind:

    prediction   a table is measured, 30 randomly cut networks are predicted and then measured in turns, ten at a time
                 with the whole network among them; beside it, a line through MACs fitted to the same calibration
                 (`latency_predictions.py`)
    loss         at the same measured latency, the loss before tuning of LcP whose search knows the latency, LcP whose
                 search knows MACs alone, naive and uniform pruning; real data, searched on training images, always at
                 the same four limits and three seeds (`latency_losses.py`)

Pieces that the file has are not measured again, so a run that was stopped, or ran out of `--minutes`, goes on;
`--again` measures them anew. Weights are random where only time is measured. Networks that take more than 300 ms are
measured two or three times, those that take more than 1.5 s twice, after a first run; `measurements` in the record says
how many rounds there were after that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from latency_losses import LOSSES, losses
from latency_predictions import predictions
from latency_tables import PAGE, summary, with_tables

from lcprune.files import write_json
from lcprune.latency import share_threads
from lcprune.latency.backends import device_name

ROOT = Path(__file__).parents[1]
NETWORKS = ("resnet56", "torchvision:mobilenet_v2", "torchvision:resnet50")
BACKENDS = {"cpu": ("eager", "onnx"), "cuda": ("cudagraph",)}  # with captured graphs come eager ones, from one table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--networks", nargs="+", help="all by default")
    parser.add_argument("--backends", nargs="+", help="for predictions; the device's own by default")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--data", help="where CIFAR-10 is, e.g. cifar10:PATH; without it only digits are real data")
    parser.add_argument("--only", choices=("prediction", "loss"))
    parser.add_argument("--again", action="store_true", help="measure what was recorded anew")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no piece after so many")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write-docs", action="store_true", help="only put what was recorded into the documentation")
    arguments = parser.parse_args()
    if arguments.write_docs:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if arguments.device == "cpu":
        share_threads()
    out = arguments.out or ROOT / "benchmarks" / "results" / f"latency-{arguments.device}.json"
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"pieces": {}}
    record.update(machine(arguments.device))
    started = time.perf_counter()
    # Tables are shared among the pieces of this run, and with nothing that was measured before.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LCPRUNE_CACHE"] = cache
        for name, make in pieces(arguments):
            if name in record["pieces"] and not arguments.again:
                continue
            if time.perf_counter() - started > 60 * arguments.minutes:
                print(f"out of time before {name}; run the same command again to go on", flush=True)
                break
            began = time.perf_counter()
            for piece, found in make().items():
                record["pieces"].pop(piece, None)
                record["pieces"][piece] = found
                print(f"{piece}: {summary(found)}", flush=True)
            record["pieces"][name]["seconds"] = round(time.perf_counter() - began, 1)
            write_json(out, record, indent=1)


def machine(device: str) -> dict[str, Any]:
    """What it ran on."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device == "cpu":
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    return {"device": device_name(torch.device(device)), "threads": torch.get_num_threads(), "versions": versions}


def pieces(arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Name and function of every piece, the most worth its time first: a run that is cut short has the most to show.

    The function gives one result per name, of which the first is the piece's.
    """
    device, chosen = arguments.device, arguments.networks
    found: list[tuple[int, str, Any]] = []
    for batch in arguments.batches if arguments.only != "loss" else ():
        for network in NETWORKS if chosen is None else [name for name in NETWORKS if name in chosen]:
            rank = 0 if batch == 1 else 3 if network == "torchvision:resnet50" else 2
            for backend in arguments.backends or BACKENDS[device]:
                settings = (network, backend, batch, device, arguments.plans)
                found.append((rank, f"prediction {network} {backend} batch {batch}", partial(predictions, *settings)))
    for network, (backends, batches, candidates, images) in LOSSES[device].items():
        digits = network == "digits_resnet"
        if arguments.only == "prediction" or (chosen and network not in chosen):
            continue
        if not digits and not arguments.data:
            print(f"loss {network}: skipped, it needs --data")
            continue
        for backend, batch in itertools.product(backends, batches):
            name = f"loss {network} {backend} batch {batch}"
            data = "digits" if digits else arguments.data
            make = partial(losses, network, backend, batch, device, data, candidates, images)
            found.append((1 if digits else 4, name, partial(named, name, make)))
    for _, name, make in sorted(found, key=lambda piece: piece[0]):
        yield name, make


def named(name: str, make: Callable[[], Any]) -> dict[str, Any]:
    """What a piece found, under its name."""
    return {name: make()}


if __name__ == "__main__":
    main()
