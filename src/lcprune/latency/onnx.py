"""ONNX Runtime on the CPU: networks as exported files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lcprune.batches import Inputs, call
from lcprune.copies import copy_of
from lcprune.errors import LatencyError
from lcprune.latency.backends import Backend, Runnable
from lcprune.onnx_runtime import import_onnx, open_session, silence

_OPSET = 17


class OnnxRuntime(Backend):
    """ONNX Runtime, which folds batch norm, joins activations with layers and keeps channels in blocks."""

    name = "onnx"
    hoards = True

    def __init__(self) -> None:
        super().__init__("cpu")
        self._onnx, _ = import_onnx("onnx", "onnxruntime")

    def network(self, model: nn.Module, inputs: Inputs) -> Runnable:
        """A network, exported and ready to be timed.

        Raises:
            LatencyError: its precision is not float32, whose kernels ONNX Runtime has on a CPU.
        """
        precision = str(next((p.dtype for p in model.parameters()), torch.float32)).removeprefix("torch.")
        if precision != "float32":
            raise LatencyError(f"backend 'onnx' measures float32 networks, not {precision}; convert the network first")
        leaves, form = pytree.tree_flatten(inputs)
        network = _Flat(copy_of(model).cpu().eval(), form)
        given = [leaf.detach().cpu() for leaf in leaves]
        given = [leaf.float() if leaf.is_floating_point() else leaf for leaf in given]
        if (batch := len(given[0])) > 1:
            # The exporter runs the network: with one sample that takes a moment, and most files are of any batch size.
            try:
                return self._ready(self._with_batch(self._export(network, [leaf[:1] for leaf in given]), batch), given)
            except Exception:  # the sample's size is written into the file; whatever it says about that
                pass
        return self._ready(self._export(network, given), given)

    def _ready(self, exported: bytes, given: Sequence[torch.Tensor]) -> Runnable:
        session = open_session(exported)
        binding, values = session.io_binding(), [leaf.contiguous().numpy() for leaf in given]
        read = {argument.name for argument in session.get_inputs()}
        for name, value in zip(_names(values), values, strict=True):
            if name in read:
                binding.bind_cpu_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)

        def run() -> Any:
            session.run_with_iobinding(binding)
            return values  # the binding points into them

        run()
        return run

    def _with_batch(self, exported: bytes, batch: int) -> bytes:
        """The file of a network for one sample, made one for `batch`; if that cannot be, the runtime refuses it."""
        model = self._onnx.load_from_string(exported)
        del model.graph.value_info[:]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
        return bytes(model.SerializeToString())

    def _export(self, network: nn.Module, given: Sequence[torch.Tensor]) -> bytes:
        """The network as a file; the tracing exporter is ten times faster, the other one knows more operators."""
        buffer, args, names = io.BytesIO(), tuple(given), _names(given)
        with silence():
            try:
                torch.onnx.export(network, args, buffer, input_names=names, dynamo=False, opset_version=_OPSET)  # type: ignore[arg-type]
                return buffer.getvalue()
            except Exception:  # whatever it is, the other exporter is the answer, or says what is wrong
                program: Any = torch.onnx.export(
                    network, args, input_names=names, dynamo=True, external_data=False, verbose=False
                )
        return bytes(program.model_proto.SerializeToString())


class _Flat(nn.Module):
    """A network called with its tensors one after another, as a file of ONNX is."""

    def __init__(self, network: nn.Module, form: pytree.TreeSpec) -> None:
        super().__init__()
        self.network, self.form = network, form

    def forward(self, *leaves: torch.Tensor) -> Any:
        return call(self.network, pytree.tree_unflatten(leaves, self.form))


def _names(given: Sequence[Any]) -> list[str]:
    return [f"input_{number}" for number in range(len(given))]
