"""How a network is trained: the paper's recipes by name, every number of them open to change.

recipe("finetune", epochs=30)      # the steps of the learning rate move with the number of epochs
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from lcprune.errors import TuneError


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum, and everything around it.

    Attributes:
        name: which preset it began as.
        epochs: passes over the training images.
        lr: learning rate at the start.
        head_lr: learning rate of the last layer, where it differs.
        lr_decay: how the rate falls: "step" (times `gamma` at each milestone) or "cosine" (to zero).
        milestones: epochs at which the rate falls.
        gamma: factor of each fall.
        warmup_epochs: epochs of linear rise before the rate falls.
        momentum: of SGD.
        nesterov: use Nesterov's form.
        weight_decay: on all weights.
        batch_size: images per step, over all processes together.
        label_smoothing: of the cross entropy.
        distill: share of the loss that is the distance to the teacher's outputs; 0 for none.
        temperature: of the distillation.
        augment: crop and flip.
        recalibrate: measure new batch-norm statistics on so many training images at the end; 0 for no.
        precision: "fp32", "bf16" (autocast; weights stay fp32), or "auto": bf16 on a GPU, and on a CPU where it works.
        channels_last: keep channels innermost in memory while training: faster on GPUs and on CPUs.
        cuda_graph: on a GPU, capture the whole step once and replay it.
        compile: run the network through torch.compile.
        eval_every: epochs between looks at the validation split (the last epoch is always looked at).
        seed: of the order of the images, their augmentation and dropout.
    """

    name: str = "baseline"
    epochs: int = 200
    lr: float = 0.1
    head_lr: float | None = None
    lr_decay: str = "step"
    milestones: tuple[int, ...] = (60, 120, 160)
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    batch_size: int = 128
    label_smoothing: float = 0.0
    distill: float = 0.0
    temperature: float = 4.0
    augment: bool = True
    recalibrate: int = 0
    precision: str = "fp32"
    channels_last: bool = True
    cuda_graph: bool = True
    compile: bool = False
    eval_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (("epochs", 0), ("batch_size", 1), ("eval_every", 1), ("recalibrate", 0)):
            if getattr(self, name) < lowest:
                raise TuneError(f"{name}={getattr(self, name)}: expected at least {lowest}")
        if self.recalibrate == 1:
            raise TuneError("recalibrate=1: statistics need at least two images; 0 leaves them as they are")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise TuneError(f"lr={self.lr}: expected a positive number")
        if self.lr_decay not in ("step", "cosine"):
            raise TuneError(f"lr_decay={self.lr_decay!r}: expected 'step' or 'cosine'")
        if self.precision not in ("fp32", "bf16", "auto"):
            raise TuneError(f"precision={self.precision!r}: expected 'fp32', 'bf16' or 'auto'")
        for name in ("distill", "label_smoothing", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise TuneError(f"{name}={getattr(self, name)}: expected a number from 0 to 1")
        if self.temperature <= 0:
            raise TuneError(f"temperature={self.temperature}: expected a positive number")

    def factors(self, epoch: int, steps: int) -> np.ndarray:
        """What the learning rates are multiplied with at each step of an epoch, counted from 0: float64 (steps,)."""
        passed = epoch + np.arange(steps) / steps
        if self.lr_decay == "cosine":
            span = max(self.epochs - self.warmup_epochs, 1e-9)
            factor = 0.5 * (1 + np.cos(np.pi * np.clip((passed - self.warmup_epochs) / span, 0, 1)))
        else:
            factor = np.full(steps, self.gamma ** sum(epoch >= milestone for milestone in self.milestones))
        if self.warmup_epochs:
            factor = factor * np.minimum(1, (passed + 1 / steps) / self.warmup_epochs)
        return factor

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "milestones": list(self.milestones)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Recipe:
        """The inverse of `to_json`."""
        return cls(**{**value, "milestones": tuple(value.get("milestones", ()))})


_PRESETS = {
    "baseline": Recipe(),
    "finetune": Recipe("finetune", epochs=60, lr=0.01, milestones=(18, 36, 48)),
    "imagenet": Recipe(
        "imagenet", epochs=30, lr=1e-4, milestones=(20,), batch_size=256, weight_decay=1e-4, precision="auto"
    ),
    "transfer": Recipe(
        "transfer", epochs=60, lr=1e-4, head_lr=1e-3, milestones=(48,), batch_size=64, weight_decay=1e-4
    ),
}


def recipes() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(_PRESETS)


def recipe(name: str = "finetune", **changes: Any) -> Recipe:
    """A preset, with changes.

    Args:
        name: "baseline" (200 epochs from scratch), "finetune" (60 epochs after pruning), "imagenet" (30) or
            "transfer" (60, two learning rates).
        **changes: any attribute of `Recipe`. With other `epochs` and no `milestones`, the milestones keep
            their place relative to the whole.
    """
    if name not in _PRESETS:
        raise TuneError(f"no recipe is called {name!r}: expected one of {', '.join(_PRESETS)}")
    preset = _PRESETS[name]
    unknown = set(changes) - {field.name for field in fields(Recipe)}
    if unknown:
        raise TuneError(f"a recipe has no {', '.join(sorted(unknown))}; see lcprune.tune.Recipe")
    if "milestones" in changes:
        changes["milestones"] = tuple(changes["milestones"])
    elif "epochs" in changes:
        share = changes["epochs"] / preset.epochs
        changes["milestones"] = tuple(max(1, round(milestone * share)) for milestone in preset.milestones)
    return replace(preset, **changes)
