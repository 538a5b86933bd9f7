"""Every idiom of the zoo: what is found, and that every cut of it computes what was meant."""

from __future__ import annotations

import pytest
import torch
from by_zeros import counted_activations, counted_macs, silenced_outputs
from oracle import counted_params, worst_difference
from selections import KINDS, group_of, pruned, select, traced, wrong_attributes
from torch.utils._pytree import tree_leaves
from zoo import ZOO

import lcprune

ROUNDING = 2e-5

every_entry = pytest.mark.parametrize("name", list(ZOO))


def entries_with(*expectations: str) -> pytest.MarkDecorator:
    """The entries that expect something of these kinds: of the others a test could not fail."""
    names = [name for name, entry in ZOO.items() if any(getattr(entry, kind) for kind in expectations)]
    return pytest.mark.parametrize("name", names)


@pytest.fixture(autouse=True)
def refusal_is_allowed(request: pytest.FixtureRequest) -> None:
    """Entries that the specification lets us refuse pass with a TraceError; any other error still fails."""
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name and ZOO[name].may_refuse:
        try:
            traced(name)
        except lcprune.TraceError as error:
            assert len(str(error)) > 20
            pytest.skip(f"refused, as it may be: {error}")


@entries_with("prunable")
def test_finds_what_can_be_cut(name: str) -> None:
    _, _, graph = traced(name)
    missing = [layer for layer in ZOO[name].prunable if group_of(graph, layer) is None]
    assert not missing, f"{missing} should be prunable; frozen: {dict(graph.frozen)}"


@entries_with("units")
def test_couples_no_more_than_needed(name: str) -> None:
    _, _, graph = traced(name)
    for layer, units in ZOO[name].units.items():
        group = group_of(graph, layer)
        assert group is not None, f"no group cuts {layer}"
        assert group.size >= units, f"{layer}: {group.size} units, {units} can go one by one"


@entries_with("frozen", "pinned")
def test_freezes_what_must_stay_and_says_why(name: str) -> None:
    _, _, graph = traced(name)
    for layer in ZOO[name].frozen:
        group = group_of(graph, layer)
        assert group is None, f"{layer} must stay, but group {group.name} cuts it"
        reasons = [reason for key, reason in graph.frozen.items() if key == layer or key.startswith(layer + ".")]
        assert reasons and all(reasons), f"{layer} stays, but graph.frozen does not say why: {dict(graph.frozen)}"
    for layer, positions in ZOO[name].pinned.items():
        for group in graph.groups:
            for member in group.members:
                if member.role == "out" and member.weight.startswith(layer + "."):
                    cut = set(member.index.reshape(-1).tolist()) & set(positions)
                    assert not cut, f"positions {sorted(cut)} of {layer} must stay"


@every_entry
def test_marks_mixing_groups_and_no_others(name: str) -> None:
    _, _, graph = traced(name)
    expected = {group.name for layer in ZOO[name].mixing if (group := group_of(graph, layer)) is not None}
    assert set(graph.mixing) == expected


@every_entry
def test_members_describe_the_weights(name: str) -> None:
    model, _, graph = traced(name)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    assert len({group.name for group in graph.groups}) == len(graph.groups)
    for group in graph.groups:
        assert group.size > 1
        assert any(member.role == "out" for member in group.members)
        for member in group.members:
            assert member.role in ("out", "in", "along")
            assert member.index.shape[0] == group.size and member.index.dtype == "int64"
            assert member.index.min() >= 0 and member.index.max() < tensors[member.weight].shape[member.dim]
            if member.role != "in":  # columns of a grouped convolution belong to one channel of every group
                assert len(set(member.index.reshape(-1).tolist())) == member.index.size


@every_entry
def test_pruned_network_runs_and_verifies(name: str) -> None:
    model, inputs, graph = traced(name)
    with torch.no_grad():
        expected = model(*inputs)
    for kind in KINDS:
        _, plan, smaller = pruned(name, kind)
        with torch.no_grad():
            found = smaller(*inputs)
        assert type(found) is type(expected), kind
        assert [leaf.shape for leaf in tree_leaves(found)] == [leaf.shape for leaf in tree_leaves(expected)], kind
        if kind == "everything":
            assert worst_difference(found, expected) == 0.0
            continue
        verification = lcprune.verify(model, plan, inputs)
        assert verification.ok, (kind, verification)
        if not graph.mixing:
            assert verification.max_error < 1e-3, kind


@every_entry
def test_pruned_network_is_the_silenced_one(name: str) -> None:
    """Against the brute-force oracle; only groups for which silencing is removal are cut."""
    model, inputs, graph = traced(name)
    for kind in KINDS:
        if kind == "everything":
            continue
        kept = select(graph, kind, only={group.name for group in graph.groups} - set(graph.mixing))
        expected = silenced_outputs(model, inputs, graph, kept)
        with torch.no_grad():
            found = graph.plan(kept).apply(model)(*inputs)
        assert worst_difference(found, expected) < ROUNDING, kind


@every_entry
def test_costs_are_exact(name: str) -> None:
    model, inputs, graph = traced(name)
    assert graph.macs == counted_macs(model, inputs)
    assert graph.params == counted_params(model)
    for kind in ("random", "one unit each"):
        _, plan, smaller = pruned(name, kind)
        assert plan.macs == counted_macs(smaller, inputs), kind
        assert plan.params == counted_params(smaller), kind


@every_entry
def test_cost_is_a_function_of_kept_counts(name: str) -> None:
    """One candidate or many, exact in MACs, parameters and activations."""
    model, inputs, graph = traced(name)
    kept, plan, smaller = pruned(name, "random")
    sizes = [group.size for group in graph.groups]
    counts = [len(kept[group.name]) for group in graph.groups]
    assert graph.cost.names == tuple(group.name for group in graph.groups)
    assert graph.cost.sizes.tolist() == sizes
    many = [sizes, counts]
    assert list(graph.cost.macs(many)) == [graph.macs, plan.macs]
    assert list(graph.cost.params(many)) == [graph.params, plan.params]
    assert graph.cost.macs(counts) == plan.macs
    expected = [counted_activations(model, inputs), counted_activations(smaller, inputs)]
    assert list(graph.cost.activations(many)) == expected


@every_entry
def test_pruned_network_traces_afresh_at_the_same_cost(name: str) -> None:
    _, inputs, _ = traced(name)
    for kind in ("half", "one unit each"):
        _, plan, smaller = pruned(name, kind)
        again = lcprune.trace(smaller, inputs)
        assert (again.macs, again.params) == (plan.macs, plan.params), kind


@every_entry
def test_modules_describe_themselves_truly(name: str) -> None:
    _, inputs, _ = traced(name)
    for kind in ("random", "one unit each"):
        assert wrong_attributes(pruned(name, kind)[2], inputs) == [], kind


@every_entry
def test_kept_weights_are_the_original_ones(name: str) -> None:
    """Every tensor of the pruned network holds values of the original one: nothing is invented or lost."""
    model, _, graph = traced(name)
    _, _, smaller = pruned(name, "random")
    original, found = model.state_dict(), smaller.state_dict()
    assert list(original) == list(found)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    cut = {tensors[member.weight].data_ptr() for group in graph.groups for member in group.members}
    for key, tensor in found.items():
        expected = original[key]
        if expected.data_ptr() not in cut:
            assert tensor.shape == expected.shape, key
            continue
        assert torch.isin(tensor, expected).all(), key


@every_entry
def test_explains_itself(name: str) -> None:
    _, _, graph = traced(name)
    text = graph.explain()
    for group in graph.groups:
        assert group.name in text
    for layer in ZOO[name].frozen:
        assert layer in text


@every_entry
def test_trace_and_apply_leave_the_model_alone(name: str) -> None:
    model, _, _ = traced(name)
    pruned(name, "random")
    untouched = ZOO[name].factory()
    assert str(model) == str(untouched)
    for (key, tensor), expected in zip(model.state_dict().items(), untouched.state_dict().values(), strict=True):
        assert torch.equal(tensor, expected), key
    for module, other in zip(model.modules(), untouched.modules(), strict=True):
        ours = {k: v for k, v in vars(module).items() if isinstance(v, (int, float, str, tuple))}
        theirs = {k: v for k, v in vars(other).items() if isinstance(v, (int, float, str, tuple))}
        assert ours == theirs
    assert all(parameter.grad is None for parameter in model.parameters())
