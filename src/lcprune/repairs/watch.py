"""What one small pass tells of a network's layers: what each reads, and who reads what it gives."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lcprune.batches import call
from lcprune.graph.outputs import leaves, tensors
from lcprune.graph.tail import Bounds, bounds
from lcprune.repairs.layers import Layer, is_plain, is_transposed, layers_of, size_of

LayerRun = tuple[str, int]  # a layer's name, and which of its runs in one pass
Beside = tuple[str, bool]  # a module's name, and whether it is what the module reads; else what it gives
Map = tuple[int, int, int]  # rows that one image has, as frames of a film; channels and places of each

OUTSIDE = "its weight is used outside of it, too"

_version_of = operator.attrgetter("_version")  # how often a tensor was written to
_ATEN = torch.ops.aten
_RESHAPES = {_ATEN.view.default, _ATEN._unsafe_view.default}
_SUMS = {_ATEN.add.Tensor, _ATEN.add_.Tensor}
_ASKED = {_ATEN._local_scalar_dense.default, _ATEN.equal.default}  # Python's own numbers come of them
_PRODUCTS = {_ATEN.convolution.default, _ATEN.mm.default, _ATEN.bmm.default, _ATEN.t.default, _ATEN.transpose.int}


@contextlib.contextmanager
def listening(
    model: nn.Module, names: Iterable[str], note: Callable[..., None], before: bool = False
) -> Iterator[None]:
    """While a network runs: `note(name, module, args, output)` after every run of these modules.

    With `before`, it is `note(name, module, args)` before every run. What a module takes first is the first of `args`,
    also if the network gives it by name.
    """

    def heard(name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], *output: Any) -> None:
        note(name, module, (named[first_named(module, named)],) if named and not args else args, *output)

    handles = []
    for name in names:
        module = model.get_submodule(name)
        listen = module.register_forward_pre_hook if before else module.register_forward_hook
        handles.append(listen(functools.partial(heard, name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_named(module: nn.Module, named: Mapping[str, Any]) -> str:
    """Of what a module is given by name, and by name alone, what it takes first."""
    return next((name for name in inspect.signature(module.forward).parameters if name in named), next(iter(named)))


@dataclass(eq=False)
class Seen:
    """What is known of a module, or of the sum behind a layer."""

    runs: list[LayerRun] = field(default_factory=list)  # of a layer, each as the first that reads the same tensor
    size: tuple[int, ...] = ()  # of what a layer reads: images first, then all but channels
    numbers: int = 0  # that one image takes: what a layer reads and gives
    maps: list[Map] = field(default_factory=list)  # of these
    places: int = 1  # of a channel, for linear layers behind a flatten
    odd: bool = False  # a layer with a forward of its own
    why: str | None = None  # a layer cannot be repaired, if so
    times: int = 0  # that it ran
    began: int = 0  # when it did last
    reads: int = 0  # operators that read what it gave
    bounds: Bounds | None = None  # of the last of them, if that was a ReLU
    norm: str | None = None  # the batch norm that read what it gave last
    behind: str | None = None  # who gave what it read, if it is a batch norm
    # What it gives was added to something: who gave the one, when the other was written to, as what that was noted.
    sum: tuple[str, int, list[tuple[int, Beside]]] | None = None


@dataclass(eq=False)
class _Known:
    """What is known of a tensor, which is kept alive: tensors are told apart by where they lie."""

    tensor: Tensor
    giver: str | None = None  # the layer, batch norm or sum that gave it, unless it was written over
    places: int = 1  # of a channel, behind a flatten
    born: int = 0  # when it was first given
    written: int = 0  # when it was
    noted: list[tuple[int, Beside]] = field(default_factory=list)  # when, and as what


class Watch(TorchDispatchMode):
    """Notes what layers read, and who reads what they give, while a network in evaluation mode runs on a few images.

    `gates` are modules through whose first argument all goes that later ones read of the inputs; with each, when it
    began, and how many numbers of one image arrive there.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        super().__init__()
        self.layers = layers_of(model)
        self.names = {id(tensor): name for name, tensor in model.named_parameters()}
        self.order: dict[str, int] = {}  # layers that run -> their places
        self.multiplied: set[str] = set()  # parameters that products take
        modules = dict(model.named_modules())
        self.seen = {name: Seen() for name in modules}
        self._norms = {name: module for name, module in modules.items() if isinstance(module, _BatchNorm)}
        self._owners = {id(own): name for name, layer in self.layers.items() for own in layer._parameters.values()}
        self._tensors: dict[int, _Known] = {}
        self._first: dict[tuple[Any, ...], LayerRun] = {}
        self._inside: list[str] = []
        self._clock = 0  # operators so far
        self._gates: dict[str, tuple[int, Tensor]] = {}  # modules that may be one: when they began, and what they read
        self._ended: set[str] = set()  # of these, those that have run
        self._hidden = False  # something may pass by later gates unseen: a number, or what a module keeps
        self._looking = False  # what runs now is not the network
        hooks = listening(model, modules, self._before, before=True), listening(model, modules, self._after)
        given = [leaf for leaf in tree_iter(inputs) if isinstance(leaf, Tensor)]
        self._images = len(given[0]) if given and given[0].ndim else 1
        for leaf in given:
            self._know(leaf)
        with torch.no_grad(), hooks[0], hooks[1], self:
            for output in tensors(leaves(call(model, inputs))):
                self._read(output)
        self.gates = self._kept_gates()
        self._tensors.clear()
        self._gates.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._looking:
            return func(*args, **(kwargs or {}))
        for value in tree_iter((args, kwargs)):
            if not isinstance(value, Tensor):
                continue
            self._read(value)
            self._pass_by(value)
            if (owner := self._owners.get(id(value))) is not None and owner not in self._inside:
                self.seen[owner].why = OUTSIDE
            if func in _PRODUCTS and id(value) in self.names:
                self.multiplied.add(self.names[id(value)])
        if args and (known := self._tensors.get(id(args[0]))) and known.giver is not None:
            self.seen[known.giver].bounds = bounds(func, args)
        joined = None
        if func in _SUMS and not kwargs and isinstance(args[1], Tensor) and args[0].shape == args[1].shape:
            joined = self._note_sum(args[0], args[1])
        kept = bool(args) and isinstance(args[0], Tensor) and id(args[0]) not in self._tensors  # by a module
        self._hidden |= _writes(func) if kept else func in _ASKED
        self._clock += 1
        if args and _writes(func) and (known := self._tensors.get(id(args[0]))):
            known.written, known.giver = self._clock, None
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor) and id(value) not in self._tensors and not (kept and func.is_view):
                self._know(value).born = self._clock
        if joined is not None:
            self._know(result).giver = joined
            self.seen.setdefault(joined, Seen())
        if func in _RESHAPES and result.ndim == 2 < args[0].ndim and len(result) == len(args[0]):
            self._know(result).places = math.prod(args[0].shape[2:])
        return result

    def _kept_gates(self) -> list[tuple[str, int, int]]:
        once = ((name, *found) for name, found in self._gates.items() if self.seen[name].times == 1)
        return [(name, clock, given.numel() // self._images) for name, clock, given in once]

    def numbers(self, clock: int = 0) -> int:
        """The most that one image takes between two layers, from then on."""
        return max((seen.numbers for seen in self.seen.values() if seen.began >= clock), default=0)

    def norm(self, name: str) -> str | None:
        """The batch norm that alone reads what a layer gives; both run once."""
        seen = self.seen[name]
        norm = seen.norm
        if norm is None or not seen.reads == len(seen.runs) == self.seen[norm].times == 1:
            return None
        return norm if isinstance(self._norms[norm].running_mean, Tensor) else None

    def beside(self, name: str) -> Beside | None:
        """What is added to what a layer gives, or to its batch norm's, and to nothing else; known before it runs."""
        seen, last = self.seen[name], self.norm(name) or name
        if seen.sum is None or not self.seen[last].reads == len(seen.runs) == 1:
            return None
        giver, written, noted = seen.sum
        if giver != last or written > seen.began:
            return None
        known = (beside for clock, beside in noted if clock <= seen.began and self.seen[beside[0]].times == 1)
        return next(known, None)

    def bounds(self, name: str) -> Bounds | None:
        """What a ReLU lets through that alone reads what a layer gives, with its batch norm and what is added."""
        last = self.seen[self.norm(name) or name if self.beside(name) is None else _sum_behind(name)]
        return last.bounds if last.reads == len(self.seen[name].runs) == 1 else None

    def _know(self, tensor: Tensor) -> _Known:
        return self._tensors.setdefault(id(tensor), _Known(tensor))

    def _read(self, tensor: Tensor) -> None:
        if (known := self._tensors.get(id(tensor))) and known.giver is not None:
            self.seen[known.giver].reads += 1

    def _pass_by(self, tensor: Tensor) -> None:
        """A tensor from before a gate is read behind it: it is no gate. Inside, what the gate was given is another."""
        if (known := self._tensors.get(id(tensor))) is not None:
            later = itertools.takewhile(lambda gate: gate[1][0] >= known.born, reversed(self._gates.items()))
            for name in [name for name, (_, given) in later if given is not tensor or name in self._ended]:
                del self._gates[name]

    def _note_sum(self, first: Tensor, second: Tensor) -> str | None:
        """Of two that are added, the one whose layer runs later may make up for the other; what to call their sum."""
        found = []
        for own, other in ((first, second), (second, first)):
            known = self._tensors.get(id(own))
            if known is not None and known.giver is not None:
                layer = self.seen[known.giver].behind or known.giver
                if layer in self.layers:
                    found.append((self.seen[layer].began, layer, known.giver, other))
        if not found:
            return None
        _, layer, giver, other = max(found, key=lambda item: item[0])
        beside = self._tensors.get(id(other), _Known(other))
        self.seen[layer].sum = giver, beside.written, [*beside.noted]
        return _sum_behind(layer)

    def _before(self, name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._looking:
            return
        seen = self.seen[name]
        seen.times += 1
        if name in self._norms and seen.times > 1:  # its statistics are those of all its runs
            self._gates = {gate: found for gate, found in self._gates.items() if found[0] <= seen.began}
        seen.began = self._clock
        if name in self.layers:
            self._inside.append(name)
        if args and isinstance(args[0], Tensor):
            known = self._know(args[0])
            known.noted.append((self._clock, (name, True)))
            self._gates.pop(name, None)
            self._ended.discard(name)
            outer, (clock, given) = next(reversed(self._gates.items()), ("", (-1, None)))
            nested = clock == self._clock and given is args[0] and outer not in self._ended  # the outer one is the gate
            if not nested and not self._hidden:
                self._gates[name] = self._clock, args[0]
            if name in self._norms and known.giver is not None:
                self.seen[known.giver].norm, seen.behind = name, known.giver

    def _after(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._looking:
            return
        self._ended.add(name)
        if name in self.layers:
            self._look_at(name, self.layers[name], args, output)
            del self._inside[self._inside.index(name) :]
        if isinstance(output, Tensor):
            known = self._know(output)
            known.noted.append((self._clock, (name, False)))
            if name in self._norms and self._only_normalises(module, args, output):
                known.giver = name

    def _only_normalises(self, norm: Any, args: tuple[Any, ...], output: Tensor) -> bool:
        """Whether a batch norm gives what PyTorch's own gives: some have an activation in them."""
        with self._aside():
            return bool(torch.allclose(output, _BatchNorm.forward(norm, args[0]), rtol=1e-3, atol=1e-5))

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Inside, what runs is not the network."""
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def _look_at(self, name: str, layer: Layer, args: tuple[Any, ...], output: Any) -> None:
        seen, linear = self.seen[name], isinstance(layer, nn.Linear)
        inputs = args[0] if args and isinstance(args[0], Tensor) else None
        least = 2 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 2
        if inputs is None or not isinstance(output, Tensor) or inputs.ndim < least:
            seen.why = "it is not called with one batch of images"
            return
        if not inputs.numel() or not output.numel():  # as of boxes, where none is found
            seen.why = "nothing of the first images reaches it"
            return
        self.order.setdefault(name, len(self.order))
        for tensor in (inputs, output):
            places = max(1, math.prod(size_of(layer, tensor)[1:]))
            seen.numbers += tensor.numel() // self._images
            seen.maps.append((max(1, len(tensor) // self._images), tensor.numel() // len(tensor) // places, places))
        version = 0 if inputs.is_inference() else _version_of(inputs)
        where = (linear, inputs.data_ptr(), inputs.shape, inputs.stride(), version)
        seen.runs.append(self._first.setdefault(where, (name, len(seen.runs))))
        seen.size, seen.places = size_of(layer, inputs), self._know(inputs).places
        if not linear or output.ndim == 2:  # of others, batch norms see something else as channels
            self._know(output).giver = name
        if not is_plain(layer):
            seen.odd = True
            with self._aside():
                multiplies = _multiplies(layer, inputs)
            if not multiplies:
                seen.why = f"a {type(layer).__name__} does more than to multiply with its weight"


def _sum_behind(layer: str) -> str:
    return f"{layer} and what is added"  # no module has such a name


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
