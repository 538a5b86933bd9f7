"""The table of docs/index.md: networks cut by LcP and repaired, without training.

python benchmarks/first_page.py     # from benchmarks/results/repair.json, and imagenet.json where it is there
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from imagenet import rows_of  # noqa: E402

from lcprune.files import atomic_write  # noqa: E402
from lcprune.report.tables import markdown  # noqa: E402

PAGE = ROOT / "docs" / "index.md"
SOURCES = {"CIFAR-10": "repair.json", "ImageNet": "imagenet.json"}
TITLES = {"resnet56": "ResNet-56", "vgg16": "VGG-16", "mobilenetv2": "MobileNetV2"}
TITLES |= {"resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2", "tf_efficientnet_lite0": "EfficientNet-Lite0"}
TITLES |= {"tf_efficientnet_lite1": "EfficientNet-Lite1"}
LIMITS = (85, 70, 50, 20)


def table() -> str:
    """Accuracy in percent, of the whole network and at each limit: as cut, repaired."""
    lines = []
    for data, name in SOURCES.items():
        file = ROOT / "benchmarks" / "results" / name
        record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"full": []}
        for whole in (row for row in record["full"] if row["network"] in TITLES):
            wanted = {"network": whole["network"], "method": "lcp", "multiple_of": None}
            mine = rows_of(record["measure"], **wanted)
            # What was repaired again on a processor, with mixtures, is what the library gives now.
            again = rows_of(record.get("processor", []), **wanted, how="auto")
            newer = {(row["limit"], row["how"]) for row in again}
            mine = [*again, *(row for row in mine if (row["limit"], row["how"]) not in newer)]
            cells = [
                " → ".join(filter(None, (_mean(mine, limit, how) for how in ("none", "auto")))) for limit in LIMITS
            ]
            lines.append([f"{TITLES[whole['network']]}, {data}", f"{100 * whole['accuracy']:.1f}", *cells])
    return markdown(["network", "whole", *(f"{limit} % of the MACs" for limit in LIMITS)], lines)


def _mean(rows: list[dict[str, Any]], limit: int, how: str) -> str:
    found = [row["accuracy"] for row in rows if row["how"] == how and _percent(row["limit"]) == limit]
    return f"{100 * statistics.mean(found):.1f}" if found else ""


def _percent(limit: float | str) -> int:
    return int(limit.rstrip("%")) if isinstance(limit, str) else round(100 * limit)


def refresh(page: str) -> str:
    """The page with the table made anew."""
    return re.sub(r"(<!-- table -->\n).*?(<!-- end -->)", lambda at: f"{at[1]}\n{table()}\n{at[2]}", page, flags=re.S)


if __name__ == "__main__":
    made = refresh(PAGE.read_text(encoding="utf-8"))
    with atomic_write(PAGE) as path:
        path.write_text(made, encoding="utf-8")
