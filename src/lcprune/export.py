"""Networks for other programs: ONNX, `torch.export`, or safetensors with a plan.

Each file is written under a temporary name, read again, run, and compared with the network before it gets
its name.
"""

from __future__ import annotations

import copy
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lcprune import bf16
from lcprune.errors import ExportError, LcpruneError, MissingDependencyError, first_line
from lcprune.files import atomic_write
from lcprune.onnx_runtime import session_options, silence
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
    model: nn.Module, example: Tensor, path: str | os.PathLike[str], format: str = "onnx", plan: Any = None
) -> Exported:
    """Write a network for other programs; any batch size works.

    Args:
        model: the network; left untouched.
        example: one input.
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
    network = copy.deepcopy(model).cpu().eval()
    sample = example.detach().cpu()
    # Two samples, not the example itself: a file that only repeats the traced values must not pass.
    generator = torch.Generator().manual_seed(1)
    inputs = torch.cat([sample, torch.randn(sample.shape, generator=generator).to(sample.dtype)])[:2]
    with torch.no_grad():
        expected = network(inputs)
    if not isinstance(expected, Tensor):
        raise ExportError(f"only networks with one output tensor can be exported, not {type(expected).__name__}")
    target = Path(path)
    write = {"onnx": _onnx, "torch": _torch, "safetensors": _safetensors}[format]
    try:
        error = write(network, inputs, expected, target, plan)
    except (LcpruneError, OSError):
        raise
    except Exception as failure:
        raise ExportError(f"{format} export failed: {type(failure).__name__}: {first_line(failure)}") from failure
    return Exported(target, format, error, _size(target))


def _onnx(network: nn.Module, inputs: Tensor, expected: Tensor, target: Path, plan: Any) -> float:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (the exporter needs it and says so less clearly)
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name} is not installed; it comes with: pip install lcprune[onnx]"
        ) from None
    with atomic_write(target) as temporary:
        with silence():
            torch.onnx.export(
                network,
                (inputs,),
                str(temporary),
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=2**20)},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        session = onnxruntime.InferenceSession(str(temporary), session_options(), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        outputs = [torch.from_numpy(session.run(None, {name: part.numpy()})[0]) for part in (inputs, inputs[:1])]
        return _compare("ONNX Runtime", outputs, expected)


def _torch(network: nn.Module, inputs: Tensor, expected: Tensor, target: Path, plan: Any) -> float:
    with atomic_write(target) as temporary:
        with silence():
            program = torch.export.export(
                network,
                (inputs,),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=2**20)},),
                strict=False,
            )
            # Through memory: the writer insists on a suffix of its own and the rename must stay atomic.
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
        temporary.write_bytes(buffer.getvalue())
        with silence():
            again = torch.export.load(io.BytesIO(temporary.read_bytes())).module()
        with torch.no_grad():
            return _compare("the reloaded program", [again(inputs), again(inputs[:1])], expected)


def _safetensors(network: nn.Module, inputs: Tensor, expected: Tensor, target: Path, plan: Any) -> float:
    from safetensors.torch import load_file, save_file

    if plan is not None:
        save(target, network, plan)
        file = target / "model.safetensors"
    else:
        file = target / "model.safetensors"
        state = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
        with atomic_write(file) as temporary:
            save_file(state, temporary)
    again = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()  # so that nothing but the file can make the outputs right
        again.load_state_dict(load_file(file))
        return _compare("the reloaded network", [again(inputs), again(inputs[:1])], expected)


def _compare(who: str, outputs: list[Any], expected: Tensor) -> float:
    scale = max(float(expected.abs().max()), 1e-6)
    worst = 0.0
    for output in outputs:
        wanted = expected[: len(output)]
        if output.shape != wanted.shape:
            raise ExportError(f"{who} gives outputs of {tuple(output.shape)}, not {tuple(wanted.shape)}")
        error = float((output - wanted).abs().max()) / scale
        if not error <= TOLERANCE:  # NaN fails too
            raise ExportError(f"{who} differs from PyTorch by {error:.2g} (relative), more than {TOLERANCE:g}")
        worst = max(worst, error)
    return worst


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
