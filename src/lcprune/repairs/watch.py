"""What one small pass tells of a network's layers: what each reads, and who reads what it gives."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lcprune.batches import call
from lcprune.repairs.layers import Layer, is_layer, is_plain, is_transposed

Run = tuple[str, int]  # a layer's name, and which of its runs in one pass
Beside = tuple[str, bool]  # a module's name, and whether it is what the module reads; else what it gives

OUTSIDE = "its weight is used outside of it, too"

_version_of = operator.attrgetter("_version")  # how often a tensor was written to
_ATEN = torch.ops.aten
_RESHAPES = {_ATEN.view.default, _ATEN._unsafe_view.default}
_SUMS = {_ATEN.add.Tensor, _ATEN.add_.Tensor}
_PRODUCTS = {_ATEN.convolution.default, _ATEN.mm.default, _ATEN.bmm.default, _ATEN.t.default, _ATEN.transpose.int}


def sizes_in(model: nn.Module, inputs: Any) -> dict[str, tuple[int, ...]]:
    """Of what the layers of a network read: images first, then all but channels."""
    found: dict[str, tuple[int, ...]] = {}

    def hook(name: str) -> Any:
        def note(layer: Layer, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                found[name] = _size(layer, args[0])

        return note

    for name, module in model.eval().named_modules():
        if is_layer(module):
            module.register_forward_pre_hook(hook(name))
    with torch.no_grad():
        call(model, inputs)
    return found


def _size(layer: Layer, inputs: Tensor) -> tuple[int, ...]:
    return (*inputs.shape[:-1],) if isinstance(layer, nn.Linear) else (len(inputs), *inputs.shape[2:])


class Watch(TorchDispatchMode):
    """Notes what layers read, and who reads what they give."""

    def __init__(self, model: nn.Module, layers: Mapping[str, Layer]) -> None:
        super().__init__()
        self.layers = layers
        self.modules = dict(model.named_modules())
        self.norms = {name: module for name, module in self.modules.items() if isinstance(module, _BatchNorm)}
        self.order: list[str] = []
        self.count: Counter[str] = Counter()
        self.same: dict[Run, Run] = {}
        self.reasons: dict[str, str] = {}
        self.odd: set[str] = set()  # layers with a forward of their own
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, int] = {}  # of a channel, for linear layers behind a flatten
        self.numbers = 0
        self.multiplied: set[int] = set()  # what products take
        self._inside: list[str] = []
        self._owners = {id(own): name for name, layer in layers.items() for own in layer._parameters.values()}
        self._alive: list[Tensor] = []  # tensors are told apart by where they lie, so none may be freed
        self._first: dict[tuple[Any, ...], Run] = {}
        self._made: dict[int, str] = {}
        self._flat: dict[int, int] = {}
        self._reads: Counter[str] = Counter()
        self._norm_of: dict[str, str] = {}
        self._norm_runs: Counter[str] = Counter()
        self._clock = 0  # operators so far
        self._looking = False  # what runs now is not the network
        self._began: dict[str, int] = {}
        self._written: dict[int, int] = {}
        self._module_runs: Counter[str] = Counter()
        self._noted: dict[int, list[tuple[int, Beside]]] = {}
        self._sums: dict[str, tuple[str, int, list[tuple[int, Beside]]]] = {}

    def __enter__(self) -> Any:
        self._handles = [
            *(module.register_forward_pre_hook(self._reading_hook(name)) for name, module in self.modules.items()),
            *(layer.register_forward_pre_hook(self._before_hook(name)) for name, layer in self.layers.items()),
            *(layer.register_forward_hook(self._layer_hook(name)) for name, layer in self.layers.items()),
            *(norm.register_forward_pre_hook(self._norm_hook(name)) for name, norm in self.norms.items()),
            *(module.register_forward_hook(self._giving_hook(name)) for name, module in self.modules.items()),
        ]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        for handle in self._handles:
            handle.remove()
        self._alive.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._looking:
            return func(*args, **(kwargs or {}))
        for value in tree_iter((args, kwargs)):
            if not isinstance(value, Tensor):
                continue
            if id(value) in self._made:
                self._reads[self._made[id(value)]] += 1
            if (owner := self._owners.get(id(value))) is not None and owner not in self._inside:
                self.reasons[owner] = OUTSIDE
            if func in _PRODUCTS:
                self.multiplied.add(id(value))
        if func in _SUMS and not kwargs and isinstance(args[1], Tensor) and args[0].shape == args[1].shape:
            self._note_sum(args[0], args[1])
        self._clock += 1
        if args and _writes(func):
            self._written[id(args[0])] = self._clock
            self._made.pop(id(args[0]), None)  # no longer what the layer gave
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

    def beside(self, name: str) -> Beside | None:
        """What is added to what a layer gives, or to its batch norm's, and to nothing else; known before it runs."""
        last = self.norm(name) or name
        if name not in self._sums or not self._reads[last] == self.count[name] == 1:
            return None
        given, written, noted = self._sums[name]
        began = self._began[name]
        if given != last or written > began:
            return None
        known = (beside for clock, beside in noted if clock <= began and self._module_runs[beside[0]] == 1)
        return next(known, None)

    def _note_sum(self, first: Tensor, second: Tensor) -> None:
        """Of two that are added, the one whose layer runs later may make up for the other."""
        layers = {norm: layer for layer, norm in self._norm_of.items()}
        found = []
        for own, other in ((first, second), (second, first)):
            given = self._made.get(id(own), "")
            layer = layers.get(given, given)
            if layer in self.layers:
                found.append((self._began[layer], layer, given, other))
        if found:
            _, layer, given, other = max(found, key=lambda item: item[0])
            self._sums[layer] = (given, self._written.get(id(other), 0), list(self._noted.get(id(other), [])))

    def _reading_hook(self, name: str) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._module_runs[name] += 1
            self._began[name] = self._clock
            if args and isinstance(args[0], Tensor):
                self._note(args[0], (name, True))

        return note

    def _giving_hook(self, name: str) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                self._note(output, (name, False))
                if name in self.norms and self._only_normalises(module, args, output):
                    self._made[id(output)] = name

        return note

    def _only_normalises(self, norm: Any, args: tuple[Any, ...], output: Tensor) -> bool:
        """Whether a batch norm gives what PyTorch's own gives: some have an activation in them."""
        self._looking = True
        try:
            return bool(torch.allclose(output, _BatchNorm.forward(norm, args[0]), rtol=1e-3, atol=1e-5))
        finally:
            self._looking = False

    def _note(self, tensor: Tensor, beside: Beside) -> None:
        self._alive.append(tensor)
        self._noted.setdefault(id(tensor), []).append((self._clock, beside))

    def _before_hook(self, name: str) -> Any:
        def note(layer: Layer, args: tuple[Any, ...]) -> None:
            self._inside.append(name)

        return note

    def _layer_hook(self, name: str) -> Any:
        def note(layer: Layer, args: tuple[Any, ...], output: Any) -> None:
            look_at(layer, args, output)
            del self._inside[self._inside.index(name) :]

        def look_at(layer: Layer, args: tuple[Any, ...], output: Any) -> None:
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
            version = 0 if inputs.is_inference() else _version_of(inputs)
            where = (linear, inputs.data_ptr(), inputs.shape, inputs.stride(), version)
            self.same[name, number] = self._first.setdefault(where, (name, number))
            self.sizes[name] = _size(layer, inputs)
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


def _writes(func: Any) -> bool:
    """Whether an operator changes its first argument."""
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return alias is not None and alias.is_write


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
