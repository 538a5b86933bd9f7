"""Which layers of a network can be repaired, and what one small pass tells of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lcprune.evaluate.prepare import call
from lcprune.graph.outputs import leaves, tensors
from lcprune.plan import Plan
from lcprune.repairs.layers import Columns, Layer, columns_after, is_layer, is_plain, is_transposed

Run = tuple[str, int]  # a layer's name, and which of its runs in one pass


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that may be repaired.

    Attributes:
        name: of the layer, in both networks.
        columns: what the cut leaves of it.
        cut: it reads fewer channels than before.
        size: of the feature maps that it reads; empty for a linear layer.
        runs: its runs in one pass, each as the first one that reads the very same tensor.
        norm: name of the batch norm that alone reads what it gives.
        patched: its outputs are products of its weight with patches of its input, once in a pass.
    """

    name: str
    columns: Columns
    cut: bool
    size: tuple[int, ...]
    runs: tuple[Run, ...]
    norm: str | None
    patched: bool


@dataclass(frozen=True, eq=False)
class Wiring:
    """What is known of a network's layers.

    Attributes:
        sites: layers that can be repaired, in the order in which they run.
        left: layers that read fewer channels and cannot be repaired -> why.
        numbers: most numbers that one image takes between two layers.
    """

    sites: tuple[Site, ...]
    left: dict[str, str]
    numbers: int


def look(model: nn.Module, plan: Plan, inputs: Any) -> Wiring:
    """Run a network on a few images: which layers a plan touches, in which order they run, and who reads them.

    Args:
        model: the whole network, in evaluation mode.
        plan: what is cut of it.
        inputs: of a few images.
    """
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    with torch.no_grad(), _Watch(model, layers) as watch:
        watch.given_out(tensors(leaves(call(model, inputs))))
    users = Counter(id(tensor) for module in model.modules() for tensor in module._parameters.values())
    found: list[Site] = []
    left: dict[str, str] = {}
    for name, layer in layers.items():
        own = plan.cuts.get(names[id(layer.weight)], {})
        reads_less = (0 if is_transposed(layer) else 1) in own
        columns = columns_after(layer, own, watch.places.get(name, 1))
        if any(users[id(tensor)] > 1 for tensor in layer._parameters.values() if tensor is not None):
            columns = "its weight or bias is another layer's, too"
        elif name in watch.reasons:
            columns = watch.reasons[name]
        elif name not in watch.order:
            columns = "it does not run in evaluation mode"
        if isinstance(columns, str):
            left |= {name: columns} if reads_less else {}
            continue
        runs = tuple(watch.same[name, number] for number in range(watch.count[name]))
        patched = len(runs) == 1 and not is_transposed(layer) and columns.taps == 1 and name not in watch.odd
        found.append(Site(name, columns, reads_less, watch.sizes[name], runs, watch.norm(name), patched))
    for weight, own in plan.cuts.items():
        name, _, computed = weight.partition(".parametrizations.")
        name = name if computed else weight.rpartition(".")[0]
        owner = model.get_submodule(name)
        if isinstance(owner, Layer) and name not in layers and (0 if is_transposed(owner) else 1) in own:
            left[name] = "its weight is computed from other numbers"
    return Wiring(tuple(sorted(found, key=lambda site: watch.order.index(site.name))), left, watch.numbers)


class _Watch(TorchDispatchMode):
    """Notes what layers read, and who reads what they give."""

    def __init__(self, model: nn.Module, layers: Mapping[str, Layer]) -> None:
        super().__init__()
        self.layers = layers
        self.norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
        self.order: list[str] = []
        self.count: Counter[str] = Counter()
        self.same: dict[Run, Run] = {}
        self.reasons: dict[str, str] = {}
        self.odd: set[str] = set()  # layers with a forward of their own
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, int] = {}  # of a channel, for linear layers behind a flatten
        self.numbers = 0
        self._alive: list[Tensor] = []  # tensors are told apart by where they lie, so none may be freed
        self._first: dict[tuple[Any, ...], Run] = {}
        self._made: dict[int, str] = {}
        self._flat: dict[int, int] = {}
        self._reads: Counter[str] = Counter()
        self._norm_of: dict[str, str] = {}
        self._norm_runs: Counter[str] = Counter()

    def __enter__(self) -> Any:
        self._handles = [
            *(layer.register_forward_hook(self._layer_hook(name)) for name, layer in self.layers.items()),
            *(norm.register_forward_pre_hook(self._norm_hook(name)) for name, norm in self.norms.items()),
        ]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_iter((args, kwargs)):
            if isinstance(value, Tensor) and id(value) in self._made:
                self._reads[self._made[id(value)]] += 1
        result = func(*args, **(kwargs or {}))
        if func in _RESHAPES and result.ndim == 2 < args[0].ndim and len(result) == len(args[0]):
            self._alive.append(result)
            self._flat[id(result)] = math.prod(args[0].shape[2:])
        return result

    def given_out(self, outputs: list[Tensor]) -> None:
        """What the network returns is read, too."""
        self._reads.update(self._made[id(output)] for output in outputs if id(output) in self._made)

    def norm(self, name: str) -> str | None:
        """The batch norm that alone reads what a layer gives; both run once."""
        norm = self._norm_of.get(name)
        if norm is None or not self._reads[name] == self.count[name] == self._norm_runs[norm] == 1:
            return None
        return norm if isinstance(self.norms[norm].running_mean, Tensor) else None

    def _layer_hook(self, name: str) -> Any:
        def note(layer: Layer, args: tuple[Any, ...], output: Any) -> None:
            inputs = args[0] if args and isinstance(args[0], Tensor) else None
            least = 2 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 2
            if inputs is None or not isinstance(output, Tensor) or inputs.ndim < least:
                self.reasons[name] = "it is not called with one batch of images"
                return
            self.order += [name] if name not in self.order else []
            number = self.count[name]
            self.count[name] += 1
            self._alive += [inputs, output]
            self.numbers = max(self.numbers, (inputs.numel() + output.numel()) // len(inputs))
            linear = isinstance(layer, nn.Linear)
            version = 0 if inputs.is_inference() else inputs._version
            where = (linear, inputs.data_ptr(), inputs.shape, inputs.stride(), version)
            self.same[name, number] = self._first.setdefault(where, (name, number))
            self.sizes[name] = () if linear else tuple(inputs.shape[2:])
            self.places[name] = self._flat.get(id(inputs), 1)
            if not linear or output.ndim == 2:  # of others, batch norms see something else as channels
                self._made[id(output)] = name
            if not is_plain(layer):
                self.odd.add(name)
                if not _multiplies(layer, inputs):
                    self.reasons[name] = f"a {type(layer).__name__} does more than to multiply with its weight"

        return note

    def _norm_hook(self, name: str) -> Any:
        def note(norm: nn.Module, args: tuple[Any, ...]) -> None:
            self._norm_runs[name] += 1
            if args and id(args[0]) in self._made:
                self._norm_of[self._made[id(args[0])]] = name

        return note


_RESHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}


def _multiplies(layer: Layer, inputs: Tensor) -> bool:
    """Whether a forward of its own multiplies input channels with the weight's columns, adds the bias, and no more."""
    weight, axis = layer.weight.detach(), 0 if is_transposed(layer) else 1
    dim = inputs.ndim - 1 if isinstance(layer, nn.Linear) else 1
    masked, silent = weight.clone(), inputs.clone()
    masked.narrow(axis, 0, 1).zero_()
    step = silent.shape[dim] if is_transposed(layer) else weight.shape[1]
    silent.index_fill_(dim, torch.arange(0, silent.shape[dim], step, device=silent.device), 0)

    def run(own: Tensor, given: Tensor, more: float = 0.0) -> Tensor:
        numbers = {"weight": own} if layer.bias is None else {"weight": own, "bias": layer.bias.detach() + more}
        result: Tensor = functional_call(layer, numbers, (given,))
        return result

    hooks, layer._forward_hooks = layer._forward_hooks, type(layer._forward_hooks)()
    try:
        none = run(torch.zeros_like(weight), inputs)
        once, thrice = run(weight, inputs) - none, run(3 * weight, inputs) - none
        largest = float(once.abs().max())
        differences = [(thrice - 3 * once) / 3, run(masked, inputs) - run(weight, silent)]
        if layer.bias is not None:
            differences.append(run(weight, inputs, more=largest) - once - none - largest)
        return all(float(difference.abs().max()) <= 1e-3 * largest for difference in differences)
    except (RuntimeError, TypeError):
        return False
    finally:
        layer._forward_hooks = hooks
