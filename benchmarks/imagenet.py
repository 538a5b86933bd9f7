"""ImageNet networks pruned without its training set: 5,000 validation images, 2,000 to work with and 3,000 to judge by.

    python benchmarks/imagenet.py measure --network mobilenet_v2 --data FOLDER --weights FOLDER
    python benchmarks/imagenet.py latency --network mobilenet_v2 --weights FOLDER --device cpu
    python benchmarks/imagenet.py show

`measure` cuts a network to five limits by three methods and repairs each cut in several ways. `latency` times what
`measure` made: its plans are in runs/imagenet. Both add their rows to benchmarks/results/imagenet.json as soon as they
have them (`measure` on a CPU as "processor"); rows that are there are not made again. `show` writes the tables of
docs/imagenet.md.

--data is what `imagenet:PATH` takes, best with five images of each class: two of five serve search and repair, three
judge. Choices are made on some of the two: a search sees --images of them, a repair holds a fifth of them back.
--weights is a folder with NETWORK.safetensors, made by benchmarks/imagenet_weights.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import lcprune
from lcprune import data, latency, models, tune
from lcprune.files import write_json
from lcprune.latency.backends import device_name
from lcprune.repairs import mend

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "imagenet.json"
NETWORKS = {  # what is built, the options of its data, what it is called
    "mobilenet_v2": ("torchvision:mobilenet_v2", "", "MobileNetV2"),
    "resnet50": (f"{HERE / 'imagenet_weights.py'}:resnet50_v1", ",input=caffe", "ResNet-50"),
    "tf_efficientnet_lite0": ("timm:tf_efficientnet_lite0", ",input=lite", "EfficientNet-Lite0"),
    "tf_efficientnet_lite1": ("timm:tf_efficientnet_lite1", ",input=lite,size=240", "EfficientNet-Lite1"),
}
METHODS = ("uniform", "naive", "lcp")
SEARCHES = {"lcp": "shift", "affine": "affine"}  # method -> the form of its ranking
OWN = {"lcp": "rebuilt", "affine": "rebuilt"}  # the metric that a method has if none is named; others have l2
LIMITS = ("85%", "75%", "70%", "58%", "50%")
WAYS = ("statistics", "auto")
WORDS = {"none": "as cut", "statistics": "statistics", "stand-ins": "stand-ins", "refit": "refit", "auto": "repaired"}
WORDS |= {"distil": "distilled"}
BACKENDS = {"cpu": ("eager", "onnx"), "cuda": ("eager", "cudagraph")}
BACKEND_WORDS = {"eager": "PyTorch", "onnx": "ONNX Runtime", "cudagraph": "CUDA graph"}
BATCHES = (1, 64)


def opened(options: argparse.Namespace) -> nn.Module:
    """The network."""
    model = models.build(NETWORKS[options.network][0], 1000, options.weights / f"{options.network}.safetensors")
    return model.to(options.device).eval()


def shape(options: argparse.Namespace) -> tuple[int, ...]:
    """Of an input."""
    given = NETWORKS[options.network][1]
    size = int(given.rpartition("size=")[2]) if "size=" in given else 224
    return 3, size, size


def images(options: argparse.Namespace) -> data.Dataset:
    """The images, decoded: from the cache, or into it."""
    given = NETWORKS[options.network][1]
    dataset = data.load(f"imagenet:{options.data}{given}", val=0)
    counts = {"train": options.calibrate, "test": options.judge}
    parts = {name: getattr(dataset, name).subset(spread(getattr(dataset, name), counts[name])) for name in counts}
    stem = "-".join(["images", *given.replace("=", "-").split(",")[1:]])
    return replace(dataset, **{name: decoded(parts[name], options.cache, f"{stem}-{name}") for name in parts})


def spread(split: data.FileSplit, count: int | None) -> np.ndarray:
    """So many images of a split, from all over it."""
    return np.linspace(0, len(split) - 1, min(count or len(split), len(split))).round().astype(np.int64)


def decoded(split: data.FileSplit, folder: Path | None, name: str) -> data.ArraySplit:
    """Central crops in memory."""
    file = None if folder is None else folder / f"{name}-{len(split)}.npy"
    if file is not None and file.exists():
        return data.ArraySplit(torch.from_numpy(np.load(file)), split.labels)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pixels = np.stack(list(pool.map(split.read, range(len(split)))))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, pixels)
    return data.ArraySplit(torch.from_numpy(pixels), split.labels)


def measure(options: argparse.Namespace, find: Callable[..., tuple[lcprune.Plan, float]] | None = None) -> None:
    """Every method, limit and seed, as cut and repaired in every way; `find` is another `planned`."""
    kind = "measure" if options.device == "cuda" else "processor"
    model, dataset = opened(options), images(options)
    graph = lcprune.trace(model, torch.randn(1, *dataset.input_shape).to(options.device))
    if not has(options, "full", network=options.network):
        add(options, "full", {"network": options.network, "macs": graph.macs} | accuracy(model, dataset, options))
    for seed in options.seeds:
        # In this order, and on this device, for every repair of this seed.
        batches = dataset.batches("train", 100, seed=100 + seed, device=options.device)
        samples = [(image, ()) for inputs, _ in batches for image in inputs]
        for method in options.methods:
            for limit in options.limits:
                row = {"network": options.network, "method": method, "limit": limit, "seed": seed}
                row |= {"multiple_of": options.multiple_of, "metric": metric_of(options, method)}
                wanted = [how for how in ("none", *options.ways) if not has(options, kind, **row, how=how)]
                if not wanted:
                    continue
                plan, seconds = (find or planned)(options, graph, dataset, method, limit, seed)
                small = plan.apply(model)
                row |= {"macs": plan.macs, "params": plan.params, "search_seconds": seconds}
                row["candidates"] = options.candidates if method in SEARCHES else None
                for how in wanted:
                    network, done = mend(
                        model, plan, small, samples, how, images=len(samples), classes=True, seed=seed, progress=False
                    )
                    entry = {"how": how, "took": done.how, "seconds": done.seconds, "fitted": done.images}
                    entry["distance"] = done.distances.get(done.how)
                    add(options, kind, row | entry | accuracy(network, dataset, options))


def planned(
    options: argparse.Namespace, graph: Any, dataset: data.Dataset, method: str, limit: str, seed: int
) -> tuple[lcprune.Plan, float]:
    """What to keep, and the seconds that finding it took; kept in a file for `latency`."""
    file = plan_file(options, method, limit, seed)
    if file.exists():
        plan = lcprune.Plan.load(file)
        return plan, plan.meta["benchmark_seconds"]
    batches = dataset.batches("train", 100, limit=options.images, seed=seed, device=options.device)
    pool = min(64, max(1, options.candidates // 3))
    search = lcprune.Search(pool=pool, iterations=options.candidates - pool, form=SEARCHES.get(method, "shift"))
    began = time.perf_counter()
    result = lcprune.prune(
        graph,
        macs=limit,
        method=lcprune.LcP(search) if method in SEARCHES else method,
        metric=metric_of(options, method),
        data=lcprune.Evaluation(batches, images=options.images) if method in SEARCHES else None,
        repair="none",
        multiple_of=options.multiple_of,
        seed=seed,
        progress=False,
    )
    seconds = round(time.perf_counter() - began, 2)
    plan = result.plan.with_meta(benchmark_seconds=seconds)
    file.parent.mkdir(parents=True, exist_ok=True)
    plan.save(file)
    return plan, seconds


def metric_of(options: argparse.Namespace, method: str) -> str:
    """What a method ranks by."""
    return str(OWN.get(method, "l2") if options.metric == "auto" else options.metric)


def plan_file(options: argparse.Namespace, method: str, limit: str, seed: int) -> Path:
    more = f"-x{options.multiple_of}" if options.multiple_of else ""
    metric = metric_of(options, method)
    more += f"-{metric}" if metric != "l2" else ""
    return Path(options.plans) / f"{options.network}-{method}-{limit.rstrip('%')}-{seed}{more}.json"


def accuracy(model: nn.Module, dataset: data.Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Top-1 on the images that only judge, with its 95 % interval."""
    share = tune.evaluate(model, dataset, "test", batch_size=options.batch, device=options.device).accuracy
    low, high = wilson(share, len(dataset.test))
    return {"accuracy": share, "low": low, "high": high, "judged": len(dataset.test)}


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share of `count`."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - half, middle + half


def time_networks(options: argparse.Namespace) -> None:
    """Milliseconds per image of the network and of its cuts, in turns, with every backend of the device."""
    model = opened(options)
    cuts = {"full": {"method": "full", "limit": "100%", "multiple_of": options.multiple_of}}
    networks = {"full": model}
    for method in options.methods:
        for limit in options.limits:
            file = plan_file(options, method, limit, options.seeds[0])
            if file.exists():
                name = f"{method} {limit}"
                networks[name] = lcprune.Plan.load(file).apply(model)
                cuts[name] = {"method": method, "limit": limit, "multiple_of": options.multiple_of}
            else:
                print(f"{file} is not there: `measure` makes it", flush=True)
    if options.device == "cpu":
        latency.share_threads()
    example = torch.randn(1, *shape(options))
    for backend in BACKENDS[options.device]:
        row = {"network": options.network, "device": options.device, "backend": backend}
        wanted = {name: one for name, one in networks.items() if not has(options, "latency", **row, **cuts[name])}
        if not wanted:
            continue
        wanted["full"] = model  # measured in the same turns
        found = latency.measure(
            wanted, example, BATCHES, device=options.device, backend=backend, rounds=options.rounds, progress=False
        )
        for name in wanted:
            ms = {str(one.batch_size): [one.ms, one.low, one.high] for one in found if one.network == name}
            threads = torch.get_num_threads() if options.device == "cpu" else None
            add(options, "latency", row | cuts[name] | {"ms": ms, "threads": threads})


def has(options: argparse.Namespace, kind: str, **wanted: Any) -> bool:
    """Whether the record has such a row."""
    return bool(rows_of(stored(options).get(kind, []), **wanted))


def stored(options: argparse.Namespace) -> dict[str, Any]:
    """The record."""
    return json.loads(options.out.read_text()) if options.out.exists() else {}


def add(options: argparse.Namespace, kind: str, row: Mapping[str, Any]) -> None:
    """Put a row into the record."""
    record = stored(options)
    where = {"machine": device_name(torch.device(options.device)), "torch": torch.__version__}
    record[kind] = [*record.get(kind, []), {**row, **where}]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, record, indent=1)
    print(kind, {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}, flush=True)


def rows_of(rows: Iterable[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """Those that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def show(options: argparse.Namespace) -> None:
    """The tables, as Markdown."""
    record = stored(options)
    for kind, full in product(("measure", "processor"), record.get("full", [])):
        mine = [{"metric": "l2", **row} for row in rows_of(record.get(kind, []), network=full["network"])]
        if not mine:
            continue
        ways = [how for how in WORDS if rows_of(mine, how=how)]
        print(f"\n**{NETWORKS[full['network']][2]}**, {full['macs'] / 1e6:,.0f} M MACs, {_cell([full])} %\n")
        print("| MACs | method | " + " | ".join(WORDS[how] for how in ways) + " | search | repair |")
        print("|---|---|" + "---|" * (len(ways) + 2))
        for limit in sorted({row["limit"] for row in mine}, key=lambda limit: -float(limit.rstrip("%"))):
            kinds = sorted({(row.get("multiple_of") or 0, row["metric"]) for row in mine})
            for method, (multiple, metric) in product(METHODS, kinds):
                rows = rows_of(mine, limit=limit, method=method, multiple_of=multiple or None, metric=metric)
                if rows:
                    cells = [_cell(rows_of(rows, how=how)) for how in ways]
                    cells += [_seconds(rows, "search_seconds"), _seconds(rows_of(rows, how="auto"), "seconds")]
                    name = _name(method, multiple, metric)
                    print(f"| {limit.replace('%', ' %')} | {name} | " + " | ".join(cells) + " |")
    times = record.get("latency", [])
    cuda = rows_of(times, device="cuda")
    for multiple in dict.fromkeys(row.get("multiple_of") for row in cuda):
        show_times(rows_of(cuda, multiple_of=multiple), multiple)
    for threads in sorted({row["threads"] for row in rows_of(times, device="cpu")}):
        show_gains(rows_of(times, device="cpu", threads=threads), threads)


def show_times(times: Sequence[dict[str, Any]], multiple: int | None) -> None:
    """Latencies of cuts with widths of one kind, beside the whole networks in the same turns."""
    columns = list(dict.fromkeys((row["device"], row["backend"], batch) for row in times for batch in row["ms"]))
    heads = [f"{device.upper()}, {BACKEND_WORDS[backend]}, {batch}" for device, backend, batch in columns]
    widths = f"; widths are multiples of {multiple}" if multiple else ""
    print(f"\nMilliseconds per image, by device, what runs the network, and batch size{widths}:\n")
    print("| network | MACs | method | " + " | ".join(heads) + " |\n|---|---|---|" + "---|" * len(columns))
    lines = dict.fromkeys((row["network"], row["limit"], row["method"]) for row in times)
    for network, limit, method in sorted(lines, key=lambda line: (line[0], line[2] != "full")):
        cells = []
        for device, backend, batch in columns:
            one = rows_of(times, network=network, limit=limit, method=method, device=device, backend=backend)
            ms = one[-1]["ms"].get(batch, [None])[0] if one else None
            cells.append("" if ms is None else f"{ms:.3g}")
        print(f"| {NETWORKS[network][2]} | {limit.replace('%', ' %')} | {method} | " + " | ".join(cells) + " |")


def show_gains(times: Sequence[dict[str, Any]], threads: int) -> None:
    """On a processor: how many times as fast a cut is as the whole network in the same turns."""
    columns = list(dict.fromkeys((row["backend"], batch) for row in times for batch in row["ms"]))
    heads = [f"{BACKEND_WORDS[backend]}, {batch}" for backend, batch in columns]
    print(f"\nTimes as fast as the whole network, on {threads} cores, by what runs it, and batch size:\n")
    print("| network | MACs | method | " + " | ".join(heads) + " |\n|---|---|---|" + "---|" * len(columns))
    kinds = dict.fromkeys((row["network"], row["limit"], row["method"], row["multiple_of"]) for row in times)
    for network, limit, method, multiple in sorted(kinds, key=lambda kind: (list(NETWORKS).index(kind[0]), kind[2])):
        if method == "full":
            continue
        cells = []
        for backend, batch in columns:
            same = rows_of(times, network=network, backend=backend, multiple_of=multiple)
            [cut] = rows_of(same, limit=limit, method=method)
            turns = [row for row in same[: same.index(cut)] if row["method"] == "full"]  # the last one has its turns
            whole = turns[-1]
            cells.append(f"{whole['ms'][batch][0] / cut['ms'][batch][0]:.2f}")
        name = _name(method, multiple, OWN.get(method, "l2"))
        print(f"| {NETWORKS[network][2]} | {limit.replace('%', ' %')} | {name} | " + " | ".join(cells) + " |")


def _name(method: str, multiple: int | None, metric: str) -> str:
    return ", ".join(
        [method, *[metric] * (metric != OWN.get(method, "l2")), *[f"multiples of {multiple}"] * bool(multiple)]
    )


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    """Top-1 and its interval; of several seeds the mean, with the interval of that share."""
    if not rows:
        return ""
    share = statistics.mean(row["accuracy"] for row in rows)
    low, high = wilson(share, rows[0]["judged"])
    return f"{100 * share:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _seconds(rows: Sequence[dict[str, Any]], key: str) -> str:
    return f"{statistics.mean(row[key] for row in rows):.0f} s" if rows else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "latency", "show"])
    parser.add_argument("--network", default="mobilenet_v2", choices=NETWORKS)
    parser.add_argument("--data", help="a folder of images or of tars, as in imagenet:PATH")
    parser.add_argument("--weights", type=Path, help="folder with NETWORK.safetensors")
    parser.add_argument("--cache", type=Path, help="folder for decoded images; without one they are decoded each time")
    parser.add_argument("--plans", type=Path, default=HERE.parent / "runs" / "imagenet", help="folder for plans")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=[way for way in WORDS if way != "none"])
    parser.add_argument("--multiple-of", type=int, help="keep multiples of so many filters")
    parser.add_argument("--metric", default="auto", help="that units are ranked by; auto: each method's own")
    parser.add_argument("--candidates", type=int, default=400, help="of a search")
    parser.add_argument("--images", type=int, default=1000, help="that a search judges candidates by")
    parser.add_argument("--calibrate", type=int, help="images to work with, if not two of five")
    parser.add_argument("--judge", type=int, help="images to judge by, if not three of five")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--batch", type=int, default=250, help="images at a time, when networks are judged")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of a latency")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.verbose:
        logging.basicConfig(level=logging.INFO)
    {"measure": measure, "latency": time_networks, "show": show}[options.what](options)


if __name__ == "__main__":
    main()
