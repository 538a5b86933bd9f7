"""Laws that hold for every network: exact cost, exact surgery, plans that survive a file."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import counted_macs, counted_params, silenced_outputs, worst_difference
from random_network import INPUT, STEPS, build
from selections import select, wrong_attributes

import lcprune

# LCPRUNE_EXAMPLES=1000 looks longer, and elsewhere each time.
EXAMPLES = int(os.environ.get("LCPRUNE_EXAMPLES", "0"))
QUICK = 30

recipes = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=1, max_size=7)


@settings(
    max_examples=EXAMPLES or QUICK,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(recipe=recipes, head=st.integers(0, 2), seed=st.integers(0, 1000))
def test_random_cuts_of_random_networks(recipe: list[tuple[str, int]], head: int, seed: int, tmp_path_factory) -> None:
    model, inputs = build(recipe, head), (torch.randn(INPUT, generator=torch.Generator().manual_seed(seed)),)
    graph = lcprune.trace(model, inputs)
    assert graph.macs == counted_macs(model, inputs)
    assert graph.params == counted_params(model)

    plan = graph.plan(select(graph, f"seed {seed}"))
    smaller = plan.apply(model)
    with torch.no_grad():
        outputs = smaller(*inputs)
    assert outputs.shape == model(*inputs).shape
    verification = lcprune.verify(model, plan, inputs)
    assert verification.ok, verification
    assert plan.macs == counted_macs(smaller, inputs)
    assert plan.params == counted_params(smaller)
    assert wrong_attributes(smaller, inputs) == []

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.save(path)
    again = lcprune.Plan.load(path).apply(build(recipe, head))
    with torch.no_grad():
        assert torch.equal(again(*inputs), outputs)

    exact = select(graph, f"seed {seed}", only={group.name for group in graph.groups} - set(graph.mixing))
    expected = silenced_outputs(model, inputs, graph, exact)
    if expected is not None:
        with torch.no_grad():
            assert worst_difference(graph.plan(exact).apply(model)(*inputs), expected) < 1e-4


@settings(max_examples=(EXAMPLES or QUICK) // 3, derandomize=not EXAMPLES, deadline=None)
@given(recipe=recipes, head=st.integers(0, 2), seed=st.integers(0, 1000))
def test_pruned_network_traced_afresh_costs_what_the_plan_says(
    recipe: list[tuple[str, int]], head: int, seed: int
) -> None:
    model, inputs = build(recipe, head), (torch.randn(INPUT),)
    graph = lcprune.trace(model, inputs)
    kept = select(graph, f"seed {seed}")
    plan = graph.plan(kept)
    again = lcprune.trace(plan.apply(model), inputs)
    counts = [len(kept[group.name]) for group in graph.groups]
    assert (again.macs, again.params) == (plan.macs, plan.params)
    assert (graph.cost.macs(counts), graph.cost.params(counts)) == (again.macs, again.params)
