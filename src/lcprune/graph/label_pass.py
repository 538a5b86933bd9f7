"""Running a network on labels: a dispatch mode that carries `Labels` beside every tensor.

On `meta` tensors (shapes without data) a run costs no arithmetic. Every operator that is executed is looked up in the
table of rules; what a rule says about labels goes to the methods below, which `Discover` (find what depends on what),
`Replay` (check a cut network) and `Silence` (the reference for `verify`) each answer in their own way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from lcprune.batches import Inputs
from lcprune.batches import call as call_network
from lcprune.copies import named_tensors
from lcprune.graph.attention import plain_attention
from lcprune.graph.labels import PLAIN, UNIFORM, Labels, Taken, Use
from lcprune.graph.noise import same_random_numbers
from lcprune.graph.outputs import Leaf, leaves
from lcprune.graph.recall import run_on_shapes
from lcprune.graph.rules import STANDS_IN, Call, Rule, Step, find_rule
from lcprune.graph.site import CodeSite, current_site
from lcprune.graph.values import Values, depends_on_values

LABELS = "_lcprune_labels"
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class LabelPass(TorchDispatchMode):
    """One forward pass with labels of parameters and buffers, by name.

    `values` is what the network reads out of its data; None if it can see for itself, or does not look.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Labels], values: Values | None = None) -> None:
        super().__init__()
        self.model, self.values = model, values
        self.operations = 0
        self.convolved: list[str] = []  # modules that ran convolutions, in order, once for a loop
        self.call: Call | None = None
        self.stack: list[str] = []
        self.unread: dict[int, str] = {}  # parameters by id, with their names
        self._written: dict[int, Tensor] = {}
        for name, tensor in named_tensors(model):
            if isinstance(tensor, nn.Parameter):
                self.unread[id(tensor)] = name
            if name in weights:
                setattr(tensor, LABELS, weights[name])

    def __getstate__(self) -> dict[str, Any]:
        # The operator that ran last is of no use afterwards, and operators cannot be sent to other processes.
        return {**self.__dict__, "call": None}

    def forward(self, args: Inputs) -> list[Leaf]:
        """Run the network and return the leaves of its output."""
        if self.values is not None:
            self.values.start()
        with torch.no_grad(), same_random_numbers(), plain_attention(), self._module_hooks(), self:
            return leaves(call_network(self.model, args))

    # -- what a rule can say; each kind of run answers in its own way -------------------------------------------

    def meet(self, a: Tensor, b: Tensor, follower: int | None = None) -> Tensor:
        """Elements under `a` and `b`, which broadcast, are combined: they must stay or go together.

        `follower` is 0 for `a` or 1 for `b` if it labels a weight that can take its positions in the other's order.
        """
        a, b = torch.broadcast_tensors(a, b)
        return torch.where(a < 0, b, a)

    def tie(self, layer: Tensor, dims: Sequence[int]) -> Tensor:
        """All elements along `dims` must stay or go together; the layer without these dimensions' variation."""
        for dim in dims:
            layer = layer.narrow(dim, 0, 1)
        return layer

    def freeze(self, layer: Tensor, reason: str) -> None:
        """The elements under `layer` must stay."""

    def phantom(self, length: int, reason: str = "") -> Tensor:
        """New atoms without a weight behind them; a reason means that they must stay."""
        return torch.full((length,), -1, dtype=torch.int64)

    def split(self, grid: Tensor, sides: int) -> None:
        """An axis was laid out as a grid with `sides` sides; with one side, as equal parts side by side."""

    def slice(self, layer: Tensor, dim: int, start: int, part: Tensor) -> None:
        """`part` was sliced out of `layer` along `dim`."""

    def take(self, taken: Taken, use: Use) -> None:
        """Channels that were taken by position are used, so a cut network must find the same ones there."""

    def step(self, step: Step) -> None:
        """An operator is run that a cut network must run too, with the same arguments."""

    def reorder(self) -> None:
        """An operator was run that does not keep the order of the channels that stay."""

    def mix(self, layer: Tensor, dims: Sequence[int]) -> None:
        """Elements along `dims` influence one another, so that removing is not the same as zeroing."""

    def contraction(
        self,
        weight: Labels,
        shape: Sequence[int],
        dims: tuple[int, int],
        positions: int,
        passing: Sequence[Tensor],
        written: int,
    ) -> None:
        """A convolution or linear layer was applied, of whose weight `dims` produce and consume channels.

        For the whole batch it is applied `positions` times to one input position, among them along the layers
        `passing` of the input, if channels lie there, and writes `written` elements of each produced channel.
        """

    def use_groups(self, layer: Tensor) -> None:
        """A convolution or normalisation whose number of groups is the length of `layer`."""

    # -- dispatch -----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if _is_composite(func):  # inside `torch.inference_mode` they come whole
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self.operations += 1
        known = self.recalled(func, args, kwargs or {})
        call = self.call = known or self.prepare(Call(func, args, kwargs or {}, self.labels_of))
        for labels in call.labels:
            self.read(labels, call)
        if call.name == "aten::convolution" and self.convolved[-1:] != [self.module]:
            self.convolved.append(self.module)
        if known is not None:
            return self.repeat(func, args, kwargs or {})
        rule = find_rule(func)
        if self.unread:
            for tensor in call.tensors:
                self.unread.pop(id(tensor), None)
        if call.labelled:
            step = rule.step(call)
            if step is not None:
                self.step(step)
        out = self.execute(call, rule)
        if call.labelled or rule.always:
            self.attach(out, rule.apply(self, call, out))
        elif call.tensors:
            even = call.uniform and not rule.uneven
            if call.inplace and not (even and _whole(call.tensors[0])):
                self.wrote(call.tensors[0])
            self.attach(out, Labels(uniform=even, weight=call.weight))
        self.after(call, out)
        return out

    def recalled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The operator when it ran before, on the same shapes and labels; None if it did not."""
        return None

    def repeat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the operator that was recalled."""

    def read(self, labels: Labels, call: Call | None = None) -> None:
        """Values are read: if they are places, or were taken from a place, channels must be where they were."""
        for layer in labels.places:
            self.freeze(layer, "its place among the channels is used as a value")
        if labels.taken:
            values = call.args if call is not None and torch.Tag.pointwise in call.func.tags else ()
            numbers = tuple(value for value in values if isinstance(value, (int, float)))
            use = (self.site(), self.module, call.name if call else "", numbers)
            for taken in labels.taken:
                self.take(taken, use)

    def site(self) -> CodeSite:
        """The places in the code that lead from `forward` to the operator that is running."""
        return current_site(until=LabelPass.forward.__code__)

    def prepare(self, call: Call) -> Call:
        """Constants that the code keeps elsewhere join a network that runs on shapes alone, and nothing leaves it."""
        if call.name == "aten::_to_copy" and call.kwargs.get("device") and call.input.device.type == "meta":
            return Call(call.func, call.args, {**call.kwargs, "device": torch.device("meta")}, self.labels_of)
        places = {tensor.device.type for tensor in call.tensors}
        if "meta" not in places or len(places) == 1:
            return call
        if call.inplace and call.tensors[0].device.type != "meta":
            self.wrote(call.tensors[0])  # the network goes on with this one, not with what stands in for it here
        args, kwargs = tree_map_only(Tensor, self._to_meta, (call.args, call.kwargs))
        return Call(call.func, args, kwargs, self.labels_of)

    def _to_meta(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "meta":
            return tensor
        moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        setattr(moved, LABELS, self.labels_of(tensor))
        setattr(moved, STANDS_IN, True)
        return moved

    def execute(self, call: Call, rule: Rule) -> Any:
        """Run the operator itself."""
        if self.values is not None and depends_on_values(call):
            return self.values.look(call, self.model.training, self.site())
        return run_on_shapes(call)

    def after(self, call: Call, out: Any) -> None:
        """The operator has run and its outputs have their labels."""

    def labels_of(self, tensor: Tensor) -> Labels:
        """The labels of a tensor; a constant of one element is uniform, any other unknown tensor is not."""
        labels: Labels | None = getattr(tensor, LABELS, None)
        if labels is None:
            return UNIFORM if tensor.numel() == 1 else PLAIN
        if labels.uniform and self._written and tensor.untyped_storage()._cdata in self._written:
            return PLAIN
        return labels

    def attach(self, out: Any, labels: Labels | Sequence[Labels]) -> None:
        """Give the outputs of an operator their labels: all the same, or each its own; of one output the first."""
        if isinstance(out, Tensor):
            setattr(out, LABELS, labels if isinstance(labels, Labels) else labels[0])
            return
        tensors = [tensor for tensor in tree_iter(out) if isinstance(tensor, Tensor)]
        each = [labels] * len(tensors) if isinstance(labels, Labels) else labels
        for tensor, label in zip(tensors, each, strict=False):
            if all(layer.ndim == tensor.ndim for layer in label.layers):
                setattr(tensor, LABELS, label)

    def wrote(self, tensor: Tensor) -> None:
        """Something was written in place into `tensor`: memory that it shares is no longer uniform."""
        if self.labels_of(tensor).uniform:
            self._written[tensor.untyped_storage()._cdata] = tensor  # kept, lest its address be given away again

    @property
    def module(self) -> str:
        """Name of the module that is running."""
        return self.stack[-1] if self.stack else ""

    @contextlib.contextmanager
    def _module_hooks(self) -> Iterator[None]:
        # On the copy's own modules: hooks for all modules of the process would hear other threads too.
        self.stack.append("")
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(self._enter, name), prepend=True))
            handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self.stack.append(name)
        # Of nothing PyTorch makes nothing, and does not run the operator that says which channels meet the norm's.
        if isinstance(module, _BatchNorm) and args and isinstance(args[0], Tensor) and not args[0].numel():
            for layer in self.labels_of(args[0]).layers:
                self.freeze(layer, "nothing of the example is normalised: give more inputs, so that something is")

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self.stack.pop()


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operator is made of others, which have rules of their own."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE))


def _whole(tensor: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory."""
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
