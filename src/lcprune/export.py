"""Networks for other programs: ONNX, `torch.export`, or safetensors with a plan.

Each file is written under a temporary name, read again, run, and compared with the network before it gets
its name.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune import bf16
from lcprune.batches import Inputs, arguments, call, random_like
from lcprune.copies import copy_of
from lcprune.errors import ExportError, LcpruneError, first_line
from lcprune.files import atomic_write
from lcprune.onnx_runtime import import_onnx, open_session, silence
from lcprune.storage import save

FORMATS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ""}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """A file that was written, read again and compared.

    Attributes:
        path: the file, or the folder of a safetensors export.
        format: one of `FORMATS`.
        max_error: largest difference of an output, relative to the largest output.
        bytes: size on disk.
    """

    path: Path
    format: str
    max_error: float
    bytes: int


def export(
    model: nn.Module, example: Any, path: str | os.PathLike[str], format: str = "onnx", plan: Any = None
) -> Exported:
    """Write a network for other programs; any batch size works.

    Args:
        model: the network; left untouched.
        example: one input: a tensor, a tuple of them, or a dict of keyword arguments. ONNX inputs are called "input",
            or by the names of the arguments if there are several; outputs "output", by the keys of a dict, or
            "output_0", "output_1", ...
        path: the file (the folder for "safetensors").
        format: "onnx", "torch" (a `torch.export` file) or "safetensors" (weights, with `plan.json` if there
            is one).
        plan: what was kept, for "safetensors".

    Raises:
        ExportError: it could not be written, or does not compute the same.
    """
    if format not in FORMATS:
        raise ExportError(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    bf16.refuse_network(model, torch.device("cpu"), ExportError)
    network = copy_of(model).cpu().eval()
    sample = pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().cpu(), arguments(example))
    # Two samples, not the example itself: a file that only repeats the traced values must not pass.
    inputs = pytree.tree_map(_two, sample, random_like(sample, seed=1))
    with torch.no_grad():
        expected = call(network, inputs)
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(expected)):
        raise ExportError(f"the network returns no tensor but {type(expected).__name__}: there is nothing to export")
    target = Path(path)
    write = {"onnx": _onnx, "torch": _torch, "safetensors": _safetensors}[format]
    try:
        error = write(network, inputs, expected, target, plan)
    except (LcpruneError, OSError):
        raise
    except Exception as failure:
        raise ExportError(f"{format} export failed: {type(failure).__name__}: {first_line(failure)}") from failure
    return Exported(target, format, error, _size(target))


def _onnx(network: nn.Module, inputs: Inputs, expected: Any, target: Path, plan: Any) -> float:
    import_onnx("onnxruntime", "onnxscript")  # the exporter needs the second and says so less clearly
    with atomic_write(target) as temporary:
        with silence():
            torch.onnx.export(
                network,
                f=str(temporary),
                input_names=_input_names(network, inputs),
                output_names=_output_names(expected),
                dynamo=True,
                external_data=False,
                verbose=False,
                **_call_of(inputs),
            )
        session = open_session(str(temporary))

        def run(part: Inputs) -> list[Tensor]:
            leaves = [leaf for leaf in pytree.tree_leaves(part) if isinstance(leaf, Tensor)]
            given = dict(zip(_input_names(network, part), leaves, strict=True))
            read = {one.name: given[one.name].numpy() for one in session.get_inputs()}
            return [torch.from_numpy(output) for output in session.run(None, read)]

        return _compare("ONNX Runtime", [run(inputs), run(_first(inputs))], expected)


def _torch(network: nn.Module, inputs: Inputs, expected: Any, target: Path, plan: Any) -> float:
    with atomic_write(target) as temporary, silence():
        program = torch.export.export(network, strict=False, **_call_of(inputs))
        # Through memory: the writer insists on a suffix of its own and the rename must stay atomic.
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        temporary.write_bytes(buffer.getvalue())
        again = torch.export.load(io.BytesIO(temporary.read_bytes())).module()
        with torch.no_grad():
            return _compare("the reloaded program", [call(again, inputs), call(again, _first(inputs))], expected)


def _safetensors(network: nn.Module, inputs: Inputs, expected: Any, target: Path, plan: Any) -> float:
    from safetensors.torch import load_file

    from lcprune.tune.checkpoint import save_weights

    file = target / "model.safetensors"
    if plan is None:
        save_weights(file, network)
    else:
        save(target, network, plan)
    again = copy_of(network)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()  # so that nothing but the file can make the outputs right
        again.load_state_dict(load_file(file))
        return _compare("the reloaded network", [call(again, inputs), call(again, _first(inputs))], expected)


def _two(sample: Any, other: Any) -> Any:
    return torch.cat([sample, other])[:2] if isinstance(sample, Tensor) and sample.ndim else sample


def _first(inputs: Inputs) -> Inputs:
    return pytree.tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim else leaf, inputs)


def _call_of(inputs: Inputs) -> dict[str, Any]:
    """The arguments of an exporter that say how the network is called, with a batch of any size."""
    batch = torch.export.Dim("batch", min=1, max=2**20)
    dims = pytree.tree_map(lambda leaf: {0: batch} if isinstance(leaf, Tensor) and leaf.ndim else None, inputs)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    return {"args": args, "kwargs": kwargs, "dynamic_shapes": dims}


def _input_names(network: nn.Module, inputs: Inputs) -> list[str]:
    paths = [path for path, leaf in pytree.tree_flatten_with_path(inputs)[0] if isinstance(leaf, Tensor)]
    if isinstance(inputs, dict):
        names: Sequence[str] = list(inputs)
    elif len(paths) == 1:
        return ["input"]
    else:
        given = inspect.signature(network.forward).parameters.values()
        plain = [one.name for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        names = [*plain, *(f"input_{number}" for number in range(len(plain), len(inputs)))]

    def name(path: Any) -> str:
        first, *rest = (getattr(key, "key", getattr(key, "idx", key)) for key in path)
        return "_".join(map(str, [first if isinstance(inputs, dict) else names[first], *rest]))

    return [name(path) for path in paths]


def _output_names(expected: Any) -> list[str]:
    count = len(pytree.tree_leaves(expected))
    if isinstance(expected, Mapping) and len(expected) == count:
        return list(map(str, expected))
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _compare(who: str, outputs: list[Any], expected: Any) -> float:
    """The largest difference; each of `outputs` is for as many samples of the batch as it has."""
    wanted = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, Tensor)]
    worst = 0.0
    for output in outputs:
        got = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        if len(got) != len(wanted):
            raise ExportError(f"{who} gives {len(got)} outputs, not {len(wanted)}")
        for one, whole in zip(got, wanted, strict=True):
            other = whole[: len(one)] if whole.ndim else whole
            if one.shape != other.shape:
                raise ExportError(f"{who} gives outputs of {tuple(one.shape)}, not {tuple(other.shape)}")
            if not other.numel():
                continue
            scale = max(float(whole.abs().max()), 1e-6)
            error = float((one.double() - other.double()).abs().max()) / scale
            if not error <= TOLERANCE:  # NaN fails too
                raise ExportError(f"{who} differs from PyTorch by {error:.2g} (relative), more than {TOLERANCE:g}")
            worst = max(worst, error)
    return worst


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
