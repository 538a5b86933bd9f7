"""ONNX Runtime on the CPU: layers as small graphs, networks as exported files."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from lcprune.errors import LatencyError, MissingDependencyError
from lcprune.latency.backends import Backend, Probe
from lcprune.latency.operations import Operation

_POINTWISE = {"relu": "Relu", "sigmoid": "Sigmoid", "add": "Add", "mul": "Mul", "sub": "Sub", "div": "Div"}
_OPSET = 17
_SMALL = 2**22  # bytes of a tensor whose session can be kept


class OnnxRuntime(Backend):
    """ONNX Runtime, which folds batch norm, joins activations with layers and keeps channels in blocks.

    Each layer is timed between a thin layer that delivers its input and a pooling that takes its output, as it
    finds them in a network; what these take alone is taken off.
    """

    name = "onnx"
    fusion = "activation"
    hoards = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise MissingDependencyError(
                f"{error.name} is not installed; it comes with: pip install lcprune[onnx]"
            ) from None
        self._onnx, self._runtime = onnx, onnxruntime
        self._deliveries: dict[tuple[int, ...], Callable[[], Any]] = {}

    def describe(self) -> dict[str, Any]:
        found = super().describe()
        found["versions"] = {
            "threads": torch.get_num_threads(),
            "onnxruntime": self._runtime.__version__,
            "torch": torch.__version__,
        }
        return found

    def release(self) -> None:
        super().release()
        self._deliveries.clear()

    def layer(self, one: Operation, widths: Sequence[int]) -> Probe:
        shapes = one.shapes_at(widths)
        delivered = shapes[1] if one.name in ("aten::addmm",) else shapes[0]
        nodes, weights = self._nodes(one, widths, shapes)
        if nodes is None:
            return Probe(lambda: None, minus=lambda: None)  # not known here: left to the correction
        if len(delivered) != 4:
            return Probe(self._session(nodes, weights, {"x": delivered}))
        before, own = self._delivery(delivered)
        run = self._session([*before, *nodes, self._pool()], own | weights, {"i": (delivered[0], 1, *delivered[2:])})
        return Probe(run, minus=self._baseline(delivered))

    def network(self, model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        (x,) = inputs
        network, x = copy.deepcopy(model).cpu().eval(), x.detach().cpu().float()
        if len(x) > 1:
            # The exporter runs the network: with one sample that takes a moment, and most files are of any batch size.
            try:
                return self._run(self._with_batch(self._export(network, x[:1]), len(x)), x)
            except Exception:  # the sample's size is written into the file; whatever it says about that
                pass
        return self._run(self._export(network, x), x)

    # -- whole networks -----------------------------------------------------------------------------------------

    def _run(self, exported: bytes, x: torch.Tensor) -> Callable[[], Any]:
        session = self._runtime.InferenceSession(exported, session_options(), providers=["CPUExecutionProvider"])
        return self._bound(session, {session.get_inputs()[0].name: x.numpy()})

    def _with_batch(self, exported: bytes, batch: int) -> bytes:
        """The file of a network for one sample, made one for `batch`; if that cannot be, the runtime refuses it."""
        model = self._onnx.load_from_string(exported)
        del model.graph.value_info[:]
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
        return bytes(model.SerializeToString())

    def _export(self, network: nn.Module, x: torch.Tensor) -> bytes:
        """The network as a file; the tracing exporter is ten times faster, the other one knows more operators."""
        from lcprune.export import silence

        buffer = io.BytesIO()
        with silence():
            try:
                torch.onnx.export(network, (x,), buffer, dynamo=False, opset_version=_OPSET)  # type: ignore[arg-type]
                return buffer.getvalue()
            except Exception:  # whatever it is, the other exporter is the answer, or says what is wrong
                program: Any = torch.onnx.export(network, (x,), dynamo=True, external_data=False, verbose=False)
        return bytes(program.model_proto.SerializeToString())

    # -- layers -------------------------------------------------------------------------------------------------

    def _nodes(
        self, one: Operation, widths: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[list[Any] | None, dict[str, Any]]:
        make = self._onnx.helper.make_node
        short = one.name.removeprefix("aten::").removesuffix("_")
        arguments, _ = one.arguments_at(widths, [torch.empty(0)] * len(shapes))
        if short == "convolution" and len(shapes[0]) == 4 and not arguments[6]:
            weight = np.full(shapes[1], 0.01, np.float32)
            attributes = {
                "strides": list(arguments[3]),
                "pads": [*arguments[4], *arguments[4]],
                "dilations": list(arguments[5]),
                "group": int(arguments[8]),
                "kernel_shape": list(shapes[1][2:]),
            }
            bias = np.zeros(shapes[1][0], np.float32)
            return [make("Conv", ["x", "w", "b"], ["c"], **attributes), make("Relu", ["c"], ["y"])], {
                "w": weight,
                "b": bias,
            }
        if short == "addmm":
            rows = np.full(shapes[2], 0.01, np.float32)
            return [make("Gemm", ["x", "w", "b"], ["y"])], {"w": rows, "b": np.zeros(shapes[0], np.float32)}
        if short in _POINTWISE:
            if len(shapes) == 2 and shapes[0] == shapes[1]:
                return [make(_POINTWISE[short], ["x", "x"], ["y"])], {}
            return ([make(_POINTWISE[short], ["x"], ["y"])], {}) if len(shapes) == 1 else (None, {})
        if short in ("max_pool2d_with_indices", "avg_pool2d") and len(shapes[0]) == 4:
            kernel = list(arguments[1])
            attributes = {
                "kernel_shape": kernel,
                "strides": list(arguments[2]) if len(arguments) > 2 and arguments[2] else kernel,
                "pads": [*arguments[3], *arguments[3]] if len(arguments) > 3 else [0, 0, 0, 0],
            }
            return [make("MaxPool" if short.startswith("max") else "AveragePool", ["x"], ["y"], **attributes)], {}
        if short in ("mean", "adaptive_avg_pool2d", "_adaptive_avg_pool2d") and len(shapes[0]) == 4:
            return [make("GlobalAveragePool", ["x"], ["y"])], {}
        return None, {}

    def _delivery(self, shape: tuple[int, ...]) -> tuple[list[Any], dict[str, Any]]:
        """A thin convolution that writes a tensor of this shape the way the runtime likes it."""
        node = self._onnx.helper.make_node("Conv", ["i", "d"], ["x"], kernel_shape=[1, 1])
        return [node], {"d": np.full((shape[1], 1, 1, 1), 0.01, np.float32)}

    def _pool(self, source: str = "y") -> Any:
        return self._onnx.helper.make_node("GlobalAveragePool", [source], ["o"])

    def _baseline(self, shape: tuple[int, ...]) -> Callable[[], Any]:
        if shape in self._deliveries:
            return self._deliveries[shape]
        nodes, weights = self._delivery(shape)
        run = self._session([*nodes, self._pool("x")], weights, {"i": (shape[0], 1, *shape[2:])})
        if 4 * math.prod(shape) < _SMALL:
            self._deliveries[shape] = run
        return run

    def _session(
        self, nodes: list[Any], weights: dict[str, Any], inputs: dict[str, tuple[int, ...]]
    ) -> Callable[[], Any]:
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "layer",
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(nodes[-1].output[0], kind, None)],
            [self._onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        model.ir_version = 9
        data = model.SerializeToString()
        session = self._runtime.InferenceSession(data, session_options(), providers=["CPUExecutionProvider"])
        return self._bound(session, {name: np.ones(shape, np.float32) for name, shape in inputs.items()})

    def _bound(self, session: Any, values: dict[str, Any]) -> Callable[[], Any]:
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for output in session.get_outputs():
            binding.bind_output(output.name)
        keep = values  # the binding points into them

        def run() -> Any:
            session.run_with_iobinding(binding)
            return keep

        run()
        return run


def session_options() -> Any:
    """What sessions of ONNX Runtime are made with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if _POOL:
        options.use_per_session_threads = False
    else:
        # A session's own threads go on looking for work after a run, in the way of the next session.
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def share_threads() -> None:
    """Let all sessions of ONNX Runtime in this process have the same threads, for steadier latencies of small networks.

    Threads of a session's own must be woken at every run. With one set for all, as a network that runs by itself has,
    layers and networks are timed alike. For processes that do nothing else: it must come before the first session, and
    from then on ONNX Runtime refuses sessions without `use_per_session_threads = False`.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed, or too old to share threads.
    """
    global _POOL
    try:
        from onnxruntime import set_global_thread_pool_sizes
    except ImportError as error:
        raise MissingDependencyError(
            f"no ONNX Runtime that can share threads ({error}); a new one comes with: pip install -U lcprune[onnx]"
        ) from None
    set_global_thread_pool_sizes(torch.get_num_threads(), 1)
    _POOL = True


_POOL = False


def need_float32(precision: str) -> None:
    """ONNX Runtime's CPU kernels are timed in float32.

    Raises:
        LatencyError: the network has another precision.
    """
    if precision != "float32":
        raise LatencyError(f"backend 'onnx' measures float32 networks, not {precision}; convert the network first")
