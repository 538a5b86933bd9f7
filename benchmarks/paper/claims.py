"""Claim by claim: the paper, ours, and whether it holds. Figures of ours come from the records."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from paper.store import MISSING, Row, Store, before, tuned

SPEED = Path(__file__).parents[1] / "results"
TUNED = SPEED / "tuned.json"
# The claim, with its page; the paper; ours; the verdict.
CLAIMS = (
    (
        "[half of ResNet-56's MACs](results/resnet-56.md) cost little after tuning",
        "LcP -0.77 points, naive -0.81",
        "LcP {lcp half}, naive {naive half}",
        "holds",
    ),
    (
        "LcP beats naive pruning [after tuning](results/resnet-56.md)",
        "+0.02 to +0.06, ± 0.04 to 0.12",
        "{least} to {most}, ± {spreads}",
        "within the noise, there and here",
    ),
    (
        "LcP [judged after repair](results/resnet-56.md#judged-after-repair-and-tuned), the library's way, beats naive "
        "pruning after tuning",
        "not in the paper",
        "{repaired 30} at 30 % of the MACs, {repaired 20} at 20 %, three trials, validation images",
        "holds on this network where much is cut",
    ),
    (
        "LcP beats naive pruning [before tuning](results/resnet-56.md#before-tuning-figure-4)",
        "yes (figure 4)",
        "{each cut} % against {naive cut} % at half the MACs",
        "holds",
    ),
    (
        "LcP beats [single-filter pruning and MorphNet](results/resnet-56.md#other-methods)",
        "93.79 against 93.21; 93.65 against 93.51",
        "at half the MACs by {over single} and {over morphnet}; at 70 % by {over single 70} and {over morphnet 70}",
        "holds but for MorphNet at 70 %",
    ),
    (
        "compensation helps [with every metric](results/ablations.md#metrics-figure-7)",
        "yes (figure 7)",
        "before tuning, at half the MACs: l1 {l1} %, l2 {l2} %, Taylor {taylor} %",
        "holds",
    ),
    (
        "[a floor of 10 %](results/ablations.md#floors-figure-8) of each layer serves",
        "10 % is used (figure 8)",
        "before tuning, at half the MACs: {floors} % with floors of one unit, 10, 20, 30 %",
        "holds; it matters little",
    ),
    (
        "[the search](performance.md) takes minutes",
        "7 min, GTX 1080 Ti",
        "{search} s, H200",
        "holds",
    ),
    (
        "LcP's search is [faster than AMC's](methods.md#the-price-of-a-search-amc-against-lcp)",
        "8 times (different machines)",
        "{amc} times (one machine, one evaluator)",
        "holds",
    ),
    (
        "[VGG](results/other-networks.md) at 22.4 % of the MACs: LcP beats naive pruning",
        "+0.60",
        "{vgg}",
        "**does not hold**",
    ),
    (
        "[MobileNetV2](results/other-networks.md) at 20 %: LcP loses nothing",
        "no loss",
        "LcP {mobile 20 lcp}, uniform {mobile 20 uniform}",
        "**does not hold**; uniform pruning does nearly that",
    ),
    (
        "MobileNetV2 at 5 %: LcP beats naive and uniform pruning",
        "+2 over both",
        "{mobile 5 naive} and {mobile 5 uniform}; judged with [new statistics](results/objective.md) {anew 5 naive} "
        "and {anew 5 uniform}",
        "only with new statistics; one trial",
    ),
    (
        "[Birds-200](results/other-networks.md#birds-200-by-transfer) at 51 %: LcP loses least",
        "LcP -1.88, single-filter -4.28",
        "LcP {birds lcp}, naive {birds naive}, single-filter {birds single}",
        "**does not hold**; one trial",
    ),
    (
        "half of ResNet-50's MACs [save time](results/latency.md), batch 1 to 16",
        "1.09 to 1.38 times",
        "H200 {gpu} times, two CPU cores {cpu} times",
        "on a CPU, more; on an H200, hardly",
    ),
    (
        "[ImageNet](imagenet.md) (table 2): ResNet-50 at 58 % of the MACs loses little",
        "-0.85, tuned on 1.2 million images",
        "{imagenet repaired} repaired, {imagenet distilled} distilled; 2,000 images, no labels",
        "not tried: no training set",
    ),
)


def table(store: Store) -> str:
    """One line per claim."""
    figures = _figures(store)
    lines = [" | ".join((claim, paper, ours.format_map(figures), verdict)) for claim, paper, ours, verdict in CLAIMS]
    return "| claim | the paper | ours | verdict |\n|---|---|---|---|\n" + "".join(f"| {line} |\n" for line in lines)


def _figures(store: Store) -> dict[str, str]:
    net = store.network
    made = {"lcp half": _gap(_after(store, net, "sweep", 0.5), whole(store))}
    made["naive half"] = _gap(_after(store, net, "naive", 0.5), whole(store))
    pairs = [(_after(store, net, "sweep", limit), _after(store, net, "naive", limit)) for limit in store.scale.limits]
    gaps = sorted(ours - naive for ours, naive in pairs if ours is not None and naive is not None)
    made["least"], made["most"] = (f"{gaps[end]:+.2f}" if gaps else MISSING for end in (0, -1))
    trials = [[100 * row["accuracy"] for row in tuned(store, net, "sweep", limit)] for limit in store.scale.limits]
    made["spreads"] = _range([statistics.stdev(own) for own in trials if len(own) > 1])
    for limit in ("30%", "20%"):
        rows = [row for row in json.loads(TUNED.read_text(encoding="utf-8")) if row["limit"] == limit]
        ways = (_mean([row for row in rows if row["way"] == way]) for way in ("lcp-l2", "naive"))
        made[f"repaired {limit.rstrip('%')}"] = _gap(*ways)
    made |= {f"{method} cut": _cut(store, method) for method in ("each", "naive")}
    for name, words in {"single_filter": "single", "morphnet": "morphnet"}.items():
        for limit, where in {0.5: "", 0.7: " 70"}.items():
            rival = _mean(store.rows("results", f"{net}/rival/{name}-{round(100 * limit)}/"))
            made[f"over {words}{where}"] = _gap(_after(store, net, "sweep", limit), rival)
    for metric in ("l1", "l2", "taylor"):
        made[metric] = " → ".join(_cut(store, method, metric, seed=1) for method in ("naive", "sweep"))
    kinds = ("floor-0", "l2", "floor-20", "floor-30")
    made["floors"] = ", ".join(_cut(store, "sweep", kind, seed=1) for kind in kinds)
    made["search"] = f"{_read(SPEED / 'search-cuda.json')['rows'][0]['total_s']:.1f}"
    made["amc"] = f"{_read(SPEED / 'methods-search-cuda.json')['ratio']:.1f}"
    made["vgg"] = _gap(*(_after(store, "vgg16", method, 0.224) for method in ("lcp", "naive")))
    mobile, full = "mobilenetv2", _mean(store.rows("results", "mobilenetv2/baseline"))
    for method in ("lcp", "uniform"):
        made[f"mobile 20 {method}"] = _gap(_after(store, mobile, method, 0.2), full)
    for method in ("naive", "uniform"):
        other = _after(store, mobile, method, 0.05)
        made[f"mobile 5 {method}"] = _gap(_after(store, mobile, "lcp", 0.05), other)
        made[f"anew 5 {method}"] = _gap(_after(store, mobile, "anew", 0.05), other)
    for name, (folder, method) in {
        "lcp": ("birds", "lcp"),
        "naive": ("birds", "naive"),
        "single": ("birds-again", "single_filter"),
    }.items():
        tunings = store.rows("results", f"{folder}/tune/{method}-51/")
        made[f"birds {name}"] = _gap(_mean(tunings), _mean(store.rows("results", f"{folder}/baseline")))
    imagenet = _read(SPEED / "imagenet.json")
    resnet50 = _mean([row for row in imagenet["full"] if row["network"] == "resnet50"])
    for how, words in {"auto": "repaired", "distil": "distilled"}.items():
        wanted = {"network": "resnet50", "method": "lcp", "limit": "58%", "how": how, "multiple_of": None}
        rows = [row for row in imagenet["measure"] if wanted.items() <= row.items()]
        made[f"imagenet {words}"] = _gap(_mean(rows), resnet50)
    return made | {"gpu": _faster(store, "cuda"), "cpu": _faster(store, "cpu")}


def whole(store: Store) -> float | None:
    """Accuracy of the network before pruning, in percent."""
    record = _read(store.folder / f"{store.network}-baseline.json")
    return 100 * record["test_accuracy"] if record else None


def _after(store: Store, network: str, method: str, limit: float) -> float | None:
    return _mean(tuned(store, network, method, limit))


def _cut(store: Store, method: str, kind: str = "l2", seed: int | None = None) -> str:
    rows = before(store, store.network, method, 0.5, kind)
    mean = _mean([row for row in rows if seed in (None, row["seed"])], "accuracy_before")
    return MISSING if mean is None else f"{mean:.1f}"


def _faster(store: Store, device: str) -> str:
    """How many times faster naive and uniform cuts of any widths are in PyTorch and float32, at batch 1 to 16."""
    pieces = _read(store.folder / f"resnet50-latency-{device}.json").get("pieces", {}).values()
    plain = [p["ms"] for p in pieces if (p["backend"], p["precision"]) == ("eager", "fp32") and p["batch"] <= 16]
    ratios = [ms["original"] / ms[name] for ms in plain for name in ("naive", "uniform")]
    return _range(ratios)


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else MISSING


def _mean(rows: list[Row], name: str = "accuracy") -> float | None:
    values = [100 * row[name] for row in rows if row.get(name) is not None]
    return statistics.mean(values) if values else None


def _gap(ours: float | None, other: float | None) -> str:
    return MISSING if ours is None or other is None else f"{ours - other:+.2f}"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
