"""How large everything is: the paper's sizes, or tiny ones that try the whole way in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Scale:
    """Sizes of all cells.

    Attributes:
        network: what the frontier is made of.
        weights: of it; None starts from random ones.
        limits: MACs of the frontier, by how soon they are wanted.
        pool, iterations, images: of a search.
        epochs: of fine-tuning.
        long: of tuning our best.
        longest: of tuning the best of those once more.
        from_scratch: epochs of the other networks' baselines.
        brief: epochs of the objectives' tuning.
        looks: steps of it after which the network is judged.
        studied: MACs at which objectives are studied.
        spreads: of random compensations, in deviations of each group's metric.
        draws: random compensations of each spread.
        replayed: candidates of a search that are studied too.
        units: of each group, in the figure of metrics.
        trials: of every cell of the first table.
        val: images held out; None for a tenth.
        others: other networks, with their limits.
        tight: MACs of the network at which cut networks are at chance.
        rivals: other methods, with their settings.
        rival_limits: MACs of their networks.
    """

    network: str = "resnet56"
    weights: Path | None = ROOT / "examples" / "resnet56-cifar10.safetensors"
    limits: tuple[float, ...] = (0.5, 0.3, 0.7, 0.2, 0.4, 0.6)
    pool: int = 64
    iterations: int = 336
    images: int = 3000
    epochs: int = 20
    long: int = 40
    longest: int = 80
    from_scratch: int = 60
    brief: int = 4
    looks: tuple[int, ...] = (50, 200)
    studied: tuple[float, ...] = (0.5, 0.25)
    spreads: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    draws: int = 6
    replayed: tuple[int, ...] = (20, 60, 120, 200, 300)
    units: int = 10
    trials: int = 3
    val: int | None = 5000
    others: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {"vgg16": (0.224,), "mobilenetv2": (0.2, 0.05)}
    )
    tight: tuple[float, ...] = (0.3, 0.2)
    rivals: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "single_filter": {"step": 5, "tune_steps": 10},
            "morphnet": {"epochs": 1, "trainings": 4},
        }
    )
    rival_limits: tuple[float, ...] = (0.7, 0.5)


PAPER = Scale()
TINY = Scale(
    network="digits_resnet",
    weights=None,
    limits=(0.5, 0.7),
    pool=3,
    iterations=2,
    images=64,
    epochs=2,
    long=3,
    longest=4,
    from_scratch=2,
    brief=1,
    looks=(1, 3),
    studied=(0.5,),
    spreads=(1.0,),
    draws=2,
    replayed=(1,),
    units=2,
    trials=2,
    val=None,
    others={},
    tight=(0.5,),
    rivals={"single_filter": {"step": 40, "tune_steps": 1, "images": 32}, "morphnet": {"epochs": 1, "trainings": 1}},
    rival_limits=(0.5,),
)
