"""Networks by name: the paper's, torchvision's, timm's, or a factory in a Python file."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lcprune.batches import example_of
from lcprune.copies import ORIGIN
from lcprune.errors import ModelError
from lcprune.models.networks import VGG, MobileNetV2, ResNet
from lcprune.models.user_files import call_file, import_file
from lcprune.models.weights import head_name, load_weights
from lcprune.vision import import_timm, import_torchvision

_CIFAR, _IMAGENET = (3, 32, 32), (3, 224, 224)
_FLOW = (3, 128, 128)  # the least that torchvision's optical flow takes
_FRAMES = 16  # that its networks for video were trained on
_BUILTIN: dict[str, tuple[Callable[..., nn.Module], tuple[int, int, int]]] = {
    "resnet20": (partial(ResNet, 3), _CIFAR),
    "resnet32": (partial(ResNet, 5), _CIFAR),
    "resnet44": (partial(ResNet, 7), _CIFAR),
    "resnet56": (partial(ResNet, 9), _CIFAR),
    "resnet110": (partial(ResNet, 18), _CIFAR),
    "vgg16": (VGG, _CIFAR),  # "VGG-13" in the paper's tables
    "mobilenetv2": (MobileNetV2, _CIFAR),
    "digits_resnet": (partial(ResNet, 2, in_channels=1), (1, 8, 8)),  # trains in seconds on a CPU
}
_PRETRAINED = "pretrained"


def names() -> tuple[str, ...]:
    """Names of the networks that lcprune brings itself."""
    return tuple(_BUILTIN)


def build(
    name: str,
    num_classes: int | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Tensor] | None = None,
    *,
    new_head: bool = False,
) -> nn.Module:
    """A network by name.

    Args:
        name: one of `names()`, `torchvision:NAME`, `timm:NAME` or `file.py:factory`.
        num_classes: outputs; None for the network's own default.
        weights: a safetensors file, a saved state dict, a state dict, or "pretrained" for the weights that
            torchvision or timm publish (downloaded when they are not in the local cache).
        new_head: with a weight file made for other classes, start the classifier afresh.

    Returns:
        The network in training mode, on the CPU.
    """
    pretrained = isinstance(weights, str) and weights == _PRETRAINED
    asked = {} if num_classes is None else {"num_classes": num_classes}
    kind, _, rest = name.partition(":")
    if name in _BUILTIN:
        model = _BUILTIN[name][0](**asked)
    elif kind == "torchvision" and rest:
        model = _torchvision(rest, asked, pretrained)
    elif kind == "timm" and rest:
        model = _timm(rest, asked, pretrained)
    elif _is_factory(name):
        model = call_file(name, asked)
        if not isinstance(model, nn.Module):
            raise ModelError(f"{name} gave a {type(model).__name__}, not a torch.nn.Module")
    else:
        raise _no_network(name)
    if pretrained and kind not in ("torchvision", "timm"):
        raise ModelError(f"{name} has no published weights; give a file instead of weights={_PRETRAINED!r}")
    if weights is not None and not pretrained:
        load_weights(model, weights, new_head=new_head)
    if _is_factory(name):  # said in full, for whoever builds it again from another folder
        path, _, function = name.rpartition(":")
        name = f"{Path(path).resolve()}:{function}"
    setattr(model, ORIGIN, {"model": name, "num_classes": num_classes})
    return model


def input_shape(name: str) -> Any:
    """(channels, height, width) that the network called `name` was made for.

    Args:
        name: as for `build`; a Python file may say its own in a constant `INPUT_SHAPE`, of several inputs a tuple or a
            dict of shapes (`lcprune/batches/inputs.py`).
    """
    kind, _, rest = name.partition(":")
    if name in _BUILTIN:
        return _BUILTIN[name][1]
    if kind == "timm" and rest:
        config = _timm_config(rest)
        return tuple(config.input_size) if config is not None else _IMAGENET
    if kind == "torchvision" and rest:
        return _torchvision_shape(rest)
    if _is_factory(name):
        return getattr(import_file(name)[0], "INPUT_SHAPE", _IMAGENET)
    raise _no_network(name)


def example_input(name: str, batch_size: int = 1, shape: Any = None) -> Any:
    """A random input for the network called `name`, always the same one; of several inputs a tuple or a dict.

    Args:
        name: as for `build`.
        batch_size: samples.
        shape: (channels, height, width) instead of the network's own, e.g. `dataset.input_shape`.
    """
    return example_of(input_shape(name) if shape is None else shape, batch_size)


def _is_factory(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _no_network(name: str) -> ModelError:
    if name.endswith(".py"):
        return ModelError(f"{name} is a file: name the function in it that builds the network, e.g. {name}:build")
    return ModelError(
        f"no network is called {name!r}: expected one of {', '.join(_BUILTIN)}, "
        "torchvision:NAME, timm:NAME or file.py:factory"
    )


def _torchvision(name: str, asked: Mapping[str, int], pretrained: bool) -> nn.Module:
    models = _torchvision_models(name)
    # Their training-only auxiliary classifiers and random initialisation warnings are of no use here.
    extra: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        extra["weights_backbone"] = None  # nobody asked for a download
    if not pretrained:
        return models.get_model(name, weights=None, **asked, **extra)
    try:
        model = models.get_model(name, weights="DEFAULT")
    except OSError as error:
        raise ModelError(f"the weights of torchvision:{name} could not be fetched: {error}") from error
    layer = head_name(model)
    if asked and model.get_submodule(layer).weight.shape[0] != asked["num_classes"]:
        fresh = models.get_model(name, weights=None, **asked, **extra)
        model.set_submodule(layer, fresh.get_submodule(layer))
    return model


def _torchvision_shape(name: str) -> tuple[Any, ...]:
    models = _torchvision_models(name)
    if name in models.list_models(module=models.optical_flow):
        return (_FLOW, _FLOW)
    try:
        size = models.get_model_weights(name).DEFAULT.transforms().crop_size
    except (AttributeError, ValueError):
        return _IMAGENET
    side = int(size[0] if isinstance(size, (list, tuple)) else size)
    return (3, _FRAMES, side, side) if name in models.list_models(module=models.video) else (3, side, side)


def _torchvision_models(name: str) -> Any:
    """`torchvision.models`, which must have one of this name."""
    models = import_torchvision().models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models(), "torchvision.models.list_models()")
    return models


def _timm(name: str, asked: Mapping[str, int], pretrained: bool) -> nn.Module:
    timm = _timm_package(name)
    try:
        return timm.create_model(name, pretrained=pretrained, **asked)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"timm:{name} could not be built: {error}") from error


def _timm_config(name: str) -> Any:
    """What timm says of a network's published weights; None if it has none."""
    try:
        return _timm_package(name).get_pretrained_cfg(name)
    except RuntimeError as error:
        known = f"timm.list_pretrained({name.partition('.')[0] + '*'!r})"
        raise ModelError(f"timm:{name} is not known ({error}): choose one of {known}") from error


def _timm_package(name: str) -> Any:
    """`timm`, which must have a network of this name."""
    timm = import_timm()
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models(), "timm.list_models()")
    return timm


def _unknown(package: str, name: str, known: Sequence[str], listing: str) -> ModelError:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose one of {listing}"
    return ModelError(f"{package} has no network called {name!r}; {hint}")
