"""Networks by name: the paper's, torchvision's, timm's, or a factory in a Python file."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lcprune.batches import example_of
from lcprune.copies import ORIGIN
from lcprune.errors import ModelError, first_line
from lcprune.models.mobilenet import MobileNetV2
from lcprune.models.neighbours import neighbours
from lcprune.models.resnet import ResNet
from lcprune.models.vgg import VGG
from lcprune.models.weights import head_name, load_weights

_CIFAR = (3, 32, 32)
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
PRETRAINED = "pretrained"


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
    pretrained = weights == PRETRAINED if isinstance(weights, str) else False
    kind, _, rest = name.partition(":")
    if name in _BUILTIN:
        model = _BUILTIN[name][0](**_classes(num_classes))
    elif kind == "torchvision" and rest:
        model = _torchvision(rest, num_classes, pretrained)
    elif kind == "timm" and rest:
        model = _timm(rest, num_classes, pretrained)
    elif _is_factory(name):
        model = _from_file(name, num_classes)
    elif name.endswith(".py"):
        raise ModelError(f"{name} is a file: name the function in it that builds the network, e.g. {name}:build")
    else:
        raise ModelError(
            f"no network is called {name!r}: expected one of {', '.join(_BUILTIN)}, "
            "torchvision:NAME, timm:NAME or file.py:factory"
        )
    if pretrained and kind not in ("torchvision", "timm"):
        raise ModelError(f"{name} has no published weights; give a file instead of weights={PRETRAINED!r}")
    if weights is not None and not pretrained:
        load_weights(model, weights, new_head=new_head)
    setattr(model, ORIGIN, {"model": _absolute(name), "num_classes": num_classes})
    return model


def input_shape(name: str) -> Any:
    """(channels, height, width) that the network called `name` was made for.

    Args:
        name: as for `build`; a Python file may say its own in a constant `INPUT_SHAPE`, of several inputs a tuple or a
            dict of shapes (`lcprune/batches/shapes.py`).
    """
    kind, _, rest = name.partition(":")
    if name in _BUILTIN:
        return _BUILTIN[name][1]
    if kind == "timm" and rest:
        config = _import("timm").get_pretrained_cfg(rest)
        return tuple(config.input_size) if config is not None else (3, 224, 224)
    if kind == "torchvision" and rest:
        size = _torchvision_size(rest)
        return (3, size, size)
    if _is_factory(name):
        return getattr(import_file(name)[0], "INPUT_SHAPE", (3, 224, 224))
    raise ModelError(f"no network is called {name!r}")


def example_input(name: str, batch_size: int = 1, shape: Any = None) -> Any:
    """A random input for the network called `name`, always the same one; of several inputs a tuple or a dict.

    Args:
        name: as for `build`.
        batch_size: samples.
        shape: (channels, height, width) instead of the network's own, e.g. `dataset.input_shape`.
    """
    return example_of(input_shape(name) if shape is None else shape, batch_size)


def import_file(spec: str, error: type[Exception] = ModelError) -> tuple[Any, Any]:
    """The module and the function (or what else it is) that `file.py:factory` names.

    Args:
        spec: path of a Python file, a colon, and a function in it.
        error: what to raise when either is missing, or the file cannot be imported.
    """
    path, _, attribute = spec.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise error(f"{spec}: no file at {file}")
    name = f"lcprune_user_{file.stem}_{abs(hash(file.resolve()))}"
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, file)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # dataclasses and pickling of workers look modules up by name
        try:
            with neighbours(file.resolve().parent):
                found.loader.exec_module(module)
        except BaseException as problem:
            del sys.modules[name]
            if isinstance(problem, Exception):
                raise error(f"{spec} cannot be imported: {_where(problem, file)}") from problem
            raise
    if not hasattr(module, attribute):
        raise error(f"{spec}: {file} has no function called {attribute!r}")
    return module, getattr(module, attribute)


def call_file(spec: str, offered: Mapping[str, Any], error: type[Exception] = ModelError) -> Any:
    """What the function that `file.py:factory` names returns.

    Args:
        spec: as for `import_file`.
        offered: arguments by name; the function gets those that it takes.
        error: what to raise when the function is missing, needs more arguments, or fails.
    """
    module, factory = import_file(spec, error)
    if not callable(factory):
        raise error(f"{spec}: {module.__file__} has no function called {spec.rpartition(':')[2]!r}")
    accepted = inspect.signature(factory).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted)
    arguments = {name: v for name, v in offered.items() if takes_any or any(name == p.name for p in accepted)}
    unbound = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in accepted if p.default is p.empty and p.kind not in unbound and p.name not in arguments]
    if needed:
        raise error(
            f"{spec} needs {', '.join(needed)}, which lcprune does not give: "
            "let them have defaults, or name a function that takes no arguments"
        )
    try:
        with neighbours(Path(module.__file__).resolve().parent):
            return factory(**arguments)
    except Exception as problem:
        raise error(f"{spec} failed: {_where(problem, Path(spec.rpartition(':')[0]).expanduser())}") from problem


def _where(problem: Exception, file: Path) -> str:
    """An error of a user's file in one line: what, and the last line of that file that was running."""
    text = first_line(problem)
    if isinstance(problem, SyntaxError):  # names the file and the line itself
        return f"SyntaxError: {text}"
    here = file.resolve()
    lines = [
        frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if Path(frame.filename).resolve() == here
    ]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(problem).__name__}: {text}{place}"


def _from_file(spec: str, num_classes: int | None) -> nn.Module:
    model = call_file(spec, _classes(num_classes))
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec} gave a {type(model).__name__}, not a torch.nn.Module")
    return model


def _is_factory(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _absolute(name: str) -> str:
    path, _, function = name.rpartition(":")
    return f"{Path(path).resolve()}:{function}" if _is_factory(name) else name


def _classes(num_classes: int | None) -> dict[str, int]:
    return {} if num_classes is None else {"num_classes": num_classes}


def _torchvision(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    models = _import("torchvision").models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    # Their training-only auxiliary classifiers and random initialisation warnings are of no use here.
    extra: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        extra["weights_backbone"] = None  # nobody asked for a download
    if not pretrained:
        return models.get_model(name, weights=None, **_classes(num_classes), **extra)
    try:
        model = models.get_model(name, weights="DEFAULT")
    except OSError as error:
        raise ModelError(f"the weights of torchvision:{name} could not be fetched: {error}") from error
    layer = head_name(model)
    if num_classes is not None and model.get_submodule(layer).weight.shape[0] != num_classes:
        fresh = models.get_model(name, weights=None, num_classes=num_classes, **extra)
        parent, _, child = layer.rpartition(".")
        setattr(model.get_submodule(parent), child, fresh.get_submodule(layer))
    return model


def _torchvision_size(name: str) -> int:
    models = _import("torchvision").models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    try:
        size = models.get_model_weights(name).DEFAULT.transforms().crop_size
    except (AttributeError, ValueError):
        return 224
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def _unknown(package: str, name: str, known: Sequence[str]) -> ModelError:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ModelError(f"{package} has no network called {name!r}{hint}")


def _timm(name: str, num_classes: int | None, pretrained: bool) -> nn.Module:
    timm = _import("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    try:
        return timm.create_model(name, pretrained=pretrained, **_classes(num_classes))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"timm:{name} could not be built: {error}") from error


def _import(package: str) -> Any:
    from lcprune import vision

    return vision.import_torchvision() if package == "torchvision" else vision.import_timm()
