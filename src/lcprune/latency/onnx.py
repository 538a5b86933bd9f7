"""ONNX Runtime on the CPU: networks as exported files."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn

from lcprune.errors import LatencyError, MissingDependencyError
from lcprune.latency.backends import Backend, Runnable
from lcprune.onnx_runtime import session_options, silence

_OPSET = 17


class OnnxRuntime(Backend):
    """ONNX Runtime, which folds batch norm, joins activations with layers and keeps channels in blocks."""

    name = "onnx"
    hoards = True

    def __init__(self) -> None:
        super().__init__("cpu")
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise MissingDependencyError(
                f"{error.name} is not installed; it comes with: pip install lcprune[onnx]"
            ) from None
        self._onnx, self._runtime = onnx, onnxruntime

    def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Runnable:
        """A network, exported and ready to be timed.

        Raises:
            LatencyError: its precision is not float32, whose kernels ONNX Runtime has on a CPU.
        """
        (x,) = inputs
        precision = str(next(model.parameters(), x).dtype).removeprefix("torch.")
        if precision != "float32":
            raise LatencyError(f"backend 'onnx' measures float32 networks, not {precision}; convert the network first")
        network, x = copy.deepcopy(model).cpu().eval(), x.detach().cpu().float()
        if len(x) > 1:
            # The exporter runs the network: with one sample that takes a moment, and most files are of any batch size.
            try:
                return self._ready(self._with_batch(self._export(network, x[:1]), len(x)), x)
            except Exception:  # the sample's size is written into the file; whatever it says about that
                pass
        return self._ready(self._export(network, x), x)

    def _ready(self, exported: bytes, x: torch.Tensor) -> Runnable:
        session = self._runtime.InferenceSession(exported, session_options(), providers=["CPUExecutionProvider"])
        binding, value = session.io_binding(), x.contiguous().numpy()
        binding.bind_cpu_input(session.get_inputs()[0].name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)

        def run() -> Any:
            session.run_with_iobinding(binding)
            return value  # the binding points into it

        run()
        return run

    def _with_batch(self, exported: bytes, batch: int) -> bytes:
        """The file of a network for one sample, made one for `batch`; if that cannot be, the runtime refuses it."""
        model = self._onnx.load_from_string(exported)
        del model.graph.value_info[:]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
        return bytes(model.SerializeToString())

    def _export(self, network: nn.Module, x: torch.Tensor) -> bytes:
        """The network as a file; the tracing exporter is ten times faster, the other one knows more operators."""
        buffer = io.BytesIO()
        with silence():
            try:
                torch.onnx.export(network, (x,), buffer, dynamo=False, opset_version=_OPSET)  # type: ignore[arg-type]
                return buffer.getvalue()
            except Exception:  # whatever it is, the other exporter is the answer, or says what is wrong
                program: Any = torch.onnx.export(network, (x,), dynamo=True, external_data=False, verbose=False)
        return bytes(program.model_proto.SerializeToString())
