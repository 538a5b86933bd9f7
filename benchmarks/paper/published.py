"""What others publish, as the paper's tables 1 and 2 quote it, beside ours."""

from __future__ import annotations

import json
from typing import Any

from lcprune.report.tables import markdown
from paper import claims
from paper.store import MISSING, RESULTS, Store, accuracy, tuned

PAPER, QUOTED, HERE = "the paper", "quoted by the paper", "here"
IMAGENET = RESULTS.parents[1] / "results" / "imagenet.json"

# Network, method, accuracy before, after, MACs left in percent, whose numbers.
CIFAR = (
    ("ResNet-56", "L1 norms (Li et al., 2016)", "93.04", "93.06", 72.4, QUOTED),
    ("ResNet-56", "single filters (Molchanov et al., 2016)", "94.18", "93.21", 72.4, PAPER),
    ("ResNet-56", "naive", "94.18", "93.77 ± 0.06", 70, PAPER),
    ("ResNet-56", "LcP", "94.18", "93.79 ± 0.11", 70, PAPER),
    ("ResNet-56", "MorphNet (Gordon et al., 2018)", "94.18", "93.51", 62, PAPER),
    ("ResNet-56", "naive", "94.18", "93.59 ± 0.04", 60, PAPER),
    ("ResNet-56", "LcP", "94.18", "93.65 ± 0.06", 60, PAPER),
    ("ResNet-56", "channel pruning (He et al., 2017)", "92.8", "91.8", 50, QUOTED),
    ("ResNet-56", "AMC (He et al., 2018)", "92.8", "91.9", 50, QUOTED),
    ("ResNet-56", "naive", "94.18", "93.37 ± 0.05", 50, PAPER),
    ("ResNet-56", "LcP", "94.18", "93.41 ± 0.12", 50, PAPER),
    ("ResNet-56", "soft pruning (He et al., 2018)", "93.59 ± 0.58", "93.35 ± 0.31", 47.4, QUOTED),
    ("VGG", "Bayesian compression (Louizos et al., 2017)", "91.9", "91.4", 45.1, QUOTED),
    ("VGG", "Bayesian compression (Louizos et al., 2017)", "91.9", "91.0", 38.9, QUOTED),
    ("VGG", "VIBNet (Dai et al., 2018)", "91.9", "91.5", 22.5, QUOTED),
    ("VGG", "naive", "91.9", "91.78 ± 0.27", 22.4, PAPER),
    ("VGG", "LcP", "91.9", "92.38 ± 0.19", 22.4, PAPER),
)
# Method, top-1 before, after, change, top-5 before, after, MACs left in percent, whose numbers.
RESNET_50 = (
    ("LcP", "76.13", "76.22", "+0.09", "92.86", "93.05", 75, PAPER),
    ("NISP (Yu et al., 2018)", "", "", "-0.21", "", "", 73, QUOTED),
    ("SSS (Huang and Wang, 2018)", "76.12", "74.18", "-1.94", "92.86", "91.91", 69, QUOTED),
    ("ThiNet (Luo et al., 2017)", "72.88", "72.04", "-0.84", "91.14", "90.67", 63, QUOTED),
    ("GDP (Lin et al., 2018)", "75.13", "72.61", "-2.52", "92.30", "91.05", 58, QUOTED),
    ("soft pruning (He et al., 2018)", "76.15", "74.61", "-1.54", "92.87", "92.06", 58, QUOTED),
    ("LcP", "76.13", "75.28", "-0.85", "92.86", "92.60", 58, PAPER),
    ("NISP (Yu et al., 2018)", "", "", "-0.89", "", "", 56, QUOTED),
    ("channel pruning (He et al., 2017)", "", "", "", "92.2", "90.8", 50, QUOTED),
    ("SPP (Wang et al., 2017)", "", "", "", "91.2", "90.4", 50, QUOTED),
    ("LcP", "76.13", "75.17", "-0.96", "92.86", "92.44", 50, PAPER),
)


def of_paper(method: str) -> dict[float, str]:
    """The paper's own accuracies of ResNet-56 by a method: share of the MACs left -> accuracy."""
    mine = (row for row in CIFAR if row[0] == "ResNet-56" and row[5] == PAPER)
    return {row[4] / 100: row[3] for row in mine if row[1].startswith(method)}


def table_published(store: Store) -> str:
    """Networks for CIFAR-10, tuned: ours are those of table 1 and of the other networks."""
    rows: list[tuple[Any, ...]] = list(CIFAR)
    for network, words, limits in ((store.network, "ResNet-56", (0.7, 0.6, 0.5)), ("vgg16", "VGG", (0.224,))):
        whole = _plain(accuracy(store.rows("results", f"{network}/baseline")))
        if network == store.network and (known := claims.whole(store)) is not None:
            whole = f"{known:.2f}"
        for limit in limits:
            for method, name in (("naive", "naive"), ("sweep" if words == "ResNet-56" else "lcp", "LcP")):
                found = _plain(accuracy(tuned(store, network, method, limit)))
                rows.append((words, name, whole, found, round(100 * limit, 1), HERE))
    lines = []
    for words, name, start, end, left, whose in sorted(rows, key=lambda row: (row[0], -row[4])):  # stable
        change = MISSING
        if MISSING not in (start, end):
            change = f"{float(end.split()[0]) - float(start.split()[0]):+.2f}"
        lines.append([words, name, f"{left:g} %", start, end, change, whose])
    return markdown(["network", "method", "MACs left", "from", "to", "change", "numbers of"], lines)


def table_resnet50(store: Store) -> str:
    """ResNet-50 for ImageNet: theirs tuned, ours repaired with 2,000 images."""
    record = json.loads(IMAGENET.read_text(encoding="utf-8"))
    [whole] = [row["accuracy"] for row in record["full"] if row["network"] == "resnet50"]
    rows: list[tuple[Any, ...]] = list(RESNET_50)
    for row in record["measure"]:
        wanted = row["network"] == "resnet50" and row["method"] == "lcp" and row["how"] in ("auto", "distil")
        if wanted and not row.get("multiple_of"):
            words = {"auto": "LcP, repaired, no training", "distil": "LcP, distilled without labels"}[row["how"]]
            change = f"{100 * (row['accuracy'] - whole):+.1f}"
            figures = f"{100 * whole:.1f}", f"{100 * row['accuracy']:.1f}", change, "", ""
            rows.append((words, *figures, float(row["limit"].rstrip("%")), HERE))
    lines = [[row[0], f"{row[6]:g} %", *row[1:6], row[7]] for row in sorted(rows, key=lambda row: -row[6])]
    return markdown(["method", "MACs left", "top-1 from", "to", "change", "top-5 from", "to", "numbers of"], lines)


def _plain(cell: str) -> str:
    """Without the number of trials."""
    return cell.partition(" (")[0]
