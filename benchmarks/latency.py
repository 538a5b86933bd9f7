"""How closely a latency limit is held, and how many networks are measured for it.

    python benchmarks/latency.py --device cpu          # adds to benchmarks/results/latency.json
    python benchmarks/latency.py --device cuda
    python benchmarks/latency.py --write-docs          # puts what was recorded into the documentation

Networks are cut to shares of their own latency, naive and uniform, under every backend and batch size. Weights are
random: only time is measured. A piece is one network, backend and batch size; pieces that the record has are not
measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

import lcprune
from lcprune import latency, models
from lcprune.files import write_json
from lcprune.latency.backends import device_name
from lcprune.report.tables import markdown

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "latency.json"
PAGE = ROOT / "docs" / "how-to" / "latency.md"
START, END = "<!-- held -->\n", "<!-- end of held -->"
NETWORKS = ("resnet56", "torchvision:mobilenet_v2", "torchvision:resnet50")
BACKENDS = {"cpu": ("eager", "onnx"), "cuda": ("eager", "cudagraph")}
BATCHES = {"cpu": (1, 16), "cuda": (1, 64)}
SHARES = ("90%", "80%", "70%", "60%")
METHODS = ("naive", "uniform")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--threads", type=int, help="of PyTorch and ONNX Runtime")
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--write-docs", action="store_true", help="only put what was recorded into the documentation")
    arguments = parser.parse_args()
    if arguments.write_docs:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.device == "cpu":
        latency.share_threads()
    record = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    own = record.setdefault(arguments.device, {"pieces": {}})
    own |= {"device": device_name(torch.device(arguments.device)), "threads": torch.get_num_threads()}
    own["torch"] = torch.__version__
    for network, backend, batch in itertools.product(
        arguments.networks, BACKENDS[arguments.device], BATCHES[arguments.device]
    ):
        name = f"{network} {backend} batch {batch}"
        if name not in own["pieces"]:
            own["pieces"][name] = held(network, backend, batch, arguments.device)
            print(name, summary(own["pieces"][name]), flush=True)
            write_json(arguments.out, record, indent=1)


def held(network: str, backend: str, batch: int, device: str) -> list[dict[str, Any]]:
    """One row per share and method."""
    torch.manual_seed(0)
    model, example = models.build(network).to(device).eval(), models.example_input(network).to(device)
    graph = lcprune.trace(model, example)
    rows = []
    for share, method in itertools.product(SHARES, METHODS):
        row: dict[str, Any] = {"share": share, "method": method}
        limit = lcprune.Latency(share, batch=batch, backend=backend)
        started = time.perf_counter()
        try:
            cut = lcprune.prune(graph, method=method, latency=limit, progress=False)
        except lcprune.BudgetError as error:
            rows.append({**row, "refused": str(error)})
            continue
        assert cut.latency is not None
        row |= {name: cut.latency.to_json()[name] for name in ("limit_ms", "measured_ms", "original_ms", "met")}
        row["attempts"] = [one["measured_ms"] / one["limit_ms"] for one in cut.latency.attempts]
        row["macs_share"] = cut.plan.macs / graph.macs
        rows.append({**row, "seconds": round(time.perf_counter() - started, 1)})
    return rows


def cells(rows: list[dict[str, Any]]) -> list[str]:
    """Limits held, used, and what it took."""
    done = [row for row in rows if "refused" not in row]
    met = [row for row in done if row["met"]]
    if not done:
        return ["0", str(len(rows)), "", "", ""]
    first = [abs(row["attempts"][0] - 1) for row in done]
    used = [row["measured_ms"] / row["limit_ms"] for row in met]
    return [
        f"{len(met)} of {len(done)}",
        str(len(rows) - len(done)),
        f"{min(used):.0%} to {max(used):.0%}".replace("%", " %") if met else "",
        f"{sum(first) / len(first):.0%}".replace("%", " %"),
        f"{sum(len(row['attempts']) for row in done) / len(done):.1f}",
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    held, refused, used, first, networks = cells(rows)
    return f"held {held}, refused {refused}, used {used}, first guess off by {first}, {networks} networks"


def table(record: dict[str, Any]) -> str:
    """What was recorded, as Markdown."""
    header = ["network, backend, batch", "held", "refused", "of the limit used", "first guess off by", "measured"]
    parts = []
    for own in record.values():
        lines = [[name, *cells(rows)] for name, rows in own["pieces"].items()]
        parts.append(f"On {own['device']} (threads: {own['threads']}):\n\n{markdown(header, lines)}\n")
    return "".join(parts)


def with_table(page: str) -> str:
    """The page with the table of what was recorded between its markers."""
    before, _, rest = page.partition(START)
    return before + START + table(json.loads(RECORD.read_text(encoding="utf-8"))) + END + rest.partition(END)[2]


if __name__ == "__main__":
    main()
