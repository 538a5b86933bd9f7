"""Importing torchvision and timm, also where torchvision's compiled operators do not fit PyTorch's build.

A torchvision built for CUDA beside a CPU build of PyTorch cannot load its operators; importing it then fails,
because it registers shapes for `torchvision::nms` that nobody declared. Its networks and transforms need none
of these operators, so they are declared (without an implementation) and the import is tried once more.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

from lcprune.errors import MissingDependencyError

# A Library's declarations vanish with the object, so it lives as long as the process.
_declared: list[torch.library.Library] = []

_UNDECLARED = ("torchvision::nms", "torchvision::qnms")


def import_torchvision() -> ModuleType:
    """Import torchvision.

    Raises:
        MissingDependencyError: it is not installed.
    """
    return _import("torchvision")


def import_timm() -> ModuleType:
    """Import timm, which imports torchvision.

    Raises:
        MissingDependencyError: it, or torchvision, is not installed.
    """
    import_torchvision()
    return _import("timm")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torchvision", "timm"):
            raise
        raise MissingDependencyError(
            f"{error.name} is not installed; it comes with: pip install lcprune[vision]"
        ) from None
    except RuntimeError as error:
        if not any(f"operator {operator} does not exist" in str(error) for operator in _UNDECLARED):
            raise
    for module in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return importlib.import_module(name)
