"""Table 3: how long a ResNet-50 takes per image before and after half of its MACs are gone.

    python benchmarks/paper/resnet50_latency.py --device cuda     # about a minute
    python benchmarks/paper/resnet50_latency.py --device cpu      # five minutes, on cores with nothing else to do
    python benchmarks/paper/tables.py --show table-3

Weights are random: only time is measured. Naive and uniform cuts, with any widths and with multiples of 8, take turns
with the original. A piece is one backend, precision and batch size; pieces that the record has are not measured again.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import lcprune  # noqa: E402
from lcprune import latency, models  # noqa: E402
from lcprune.files import write_json  # noqa: E402
from lcprune.latency.backends import device_name  # noqa: E402
from lcprune.report.tables import markdown  # noqa: E402
from paper.store import MISSING, RESULTS, Store  # noqa: E402

NETWORK = "torchvision:resnet50"
LIMIT = 0.5
BATCHES = (1, 4, 16, 64)
BACKENDS = {"cpu": ("eager", "onnx"), "cuda": ("eager", "cudagraph")}
PRECISIONS = {"cpu": ("fp32",), "cuda": ("fp32", "bf16")}
WORDS = {"eager": "PyTorch", "cudagraph": "captured graph", "compile": "torch.compile", "onnx": "ONNX Runtime"}

# The paper's table 3, milliseconds per image; it does not name the device.
PUBLISHED = {
    "ResNet-50": ("5.03", "2.17", "1.53", "out of memory"),
    "ResNet-50, half the MACs": ("4.62", "1.69", "1.11", "0.99"),
}


def networks(name: str, device: torch.device, widths: Sequence[int]) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The original and its cuts, and what each costs."""
    torch.manual_seed(0)
    model = models.build(name).to(device).eval()
    example = models.example_input(name).to(device)
    graph = lcprune.trace(model, example)
    made: dict[str, nn.Module] = {"original": model}
    costs: dict[str, Any] = {"original": {"macs": graph.macs, "params": graph.params}}
    for width in widths:
        for method in ("naive", "uniform"):
            cut = lcprune.prune(graph, macs=LIMIT, method=method, multiple_of=width, progress=False)
            key = method if width == 1 else f"{method}, widths of {width}"
            made[key] = cut.model.to(device).eval()
            costs[key] = {"macs": cut.plan.macs, "params": cut.plan.params}
    return made, costs


def as_run(models_: dict[str, nn.Module], precision: str, device: torch.device) -> dict[str, nn.Module]:
    """Copies in a precision, on a GPU with channels innermost, as convolutions on tensor cores want them."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    return {
        name: copy.deepcopy(model).to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
        for name, model in models_.items()
    }


def main() -> None:
    options = arguments()
    began = time.perf_counter()
    device = torch.device(options.device)
    out = options.out or RESULTS / f"resnet50-latency-{device.type}.json"
    record = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"pieces": {}}
    made, costs = networks(options.network, device, options.widths)
    record |= {"network": options.network, "weights": "random", "limit": LIMIT, "device": device_name(device)}
    record |= {"torch": torch.__version__, "threads": torch.get_num_threads(), "costs": costs}
    example = models.example_input(options.network).to(device)
    for precision in PRECISIONS[device.type]:
        cast = as_run(made, precision, device)
        inputs = (example.to(next(cast["original"].parameters()).dtype),)
        for backend in options.backends or BACKENDS[device.type]:
            for batch in options.batches:
                name = f"{backend} {precision} {batch}"
                if name in record["pieces"]:
                    continue
                runner = latency.make_backend(backend, device)
                # Large batches on a CPU take seconds: a few rounds tell enough.
                rounds = (options.rounds, 3 * options.rounds) if device.type == "cuda" or batch < 16 else (3, 3)
                ms = latency.measure_networks(runner, cast, inputs, batch, rounds)
                record["pieces"][name] = {"backend": backend, "precision": precision, "batch": batch, "ms": ms}
                write_json(out, record, indent=1)
                shown = ", ".join(f"{key} {value / batch:.3f}" for key, value in ms.items())
                print(f"{time.perf_counter() - began:.0f} s: {name}: {shown}", flush=True)


def table_3(store: Store) -> str:
    """Milliseconds per image; in brackets, how many times faster than the original in the same run."""
    lines = [["paper", words, *figures] for words, figures in PUBLISHED.items()]
    for device in ("cuda", "cpu"):
        file = store.folder / f"resnet50-latency-{device}.json"
        if not file.is_file():
            lines.append([device, MISSING, *[MISSING] * len(BATCHES)])
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        pieces = record["pieces"].values()
        for backend, precision in dict.fromkeys((piece["backend"], piece["precision"]) for piece in pieces):
            found = {p["batch"]: p["ms"] for p in pieces if (p["backend"], p["precision"]) == (backend, precision)}
            where = f"{record['device'].removeprefix('cpu ')}, {WORDS[backend]}, {precision}"
            for name in record["costs"]:
                cells = [_cell(found.get(batch, {}), name, batch) for batch in BATCHES]
                lines.append([where if name == "original" else "", name, *cells])
    return markdown(["", "network", *(f"batch {batch}" for batch in BATCHES)], lines)


def _cell(ms: dict[str, float], name: str, batch: int) -> str:
    if name not in ms:
        return MISSING
    faster = "" if name == "original" else f" ({ms['original'] / ms[name]:.2f})"
    return f"{ms[name] / batch:.3g}{faster}"


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--backends", nargs="+", choices=latency.BACKENDS, help="the device's own by default")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 8], help="widths are multiples of these")
    parser.add_argument(
        "--rounds", type=int, default=5, help="fewest measurements of each network; at most three times it"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
