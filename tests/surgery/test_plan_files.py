"""Plans on disk: readable, complete, and refused with a reason when they are not what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from selections import select, traced
from zoo import ZOO

import lcprune

NAMES = ("Residual", "OptionAShortcut", "ChannelShuffle", "Res2NetBlock", "DecoderByAttribute", "GroupNorm")


def saved(name: str, folder: Path) -> tuple[Any, Path]:
    _, _, graph = traced(name)
    plan = graph.plan(select(graph, "half"))
    path = folder / "plan.json"
    plan.save(path)
    return plan, path


def kept_table(document: Any, plan: Any) -> dict[str, Any]:
    """The part of the file that lists kept units by group, wherever it is."""
    if isinstance(document, dict):
        if set(plan.kept) <= set(document):
            return document
        for value in document.values():
            try:
                return kept_table(value, plan)
            except LookupError:
                continue
    raise LookupError("no table of kept units")


@pytest.mark.parametrize("name", NAMES)
def test_loaded_plan_makes_the_same_network(name: str, tmp_path: Path) -> None:
    model, inputs, _ = traced(name)
    plan, path = saved(name, tmp_path)
    loaded = lcprune.Plan.load(path)
    assert (loaded.macs, loaded.params) == (plan.macs, plan.params)
    assert {key: list(map(int, units)) for key, units in loaded.kept.items()} == {
        key: list(map(int, units)) for key, units in plan.kept.items()
    }
    ours, theirs = plan.apply(model), loaded.apply(ZOO[name].factory())
    assert str(ours) == str(theirs)
    for (key, tensor), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), key
    with torch.no_grad():
        assert torch.equal(torch.as_tensor(ours(*inputs)), torch.as_tensor(theirs(*inputs)))


def test_saving_twice_writes_the_same_file(tmp_path: Path) -> None:
    _, path = saved("Residual", tmp_path)
    again = tmp_path / "again.json"
    lcprune.Plan.load(path).save(again)
    assert json.loads(again.read_text()) == json.loads(path.read_text())


def test_file_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    plan, path = saved("Residual", tmp_path)
    text = path.read_text()
    document = json.loads(text)
    assert "version" in " ".join(document)
    assert all(group in text for group in plan.kept)
    assert max(map(len, text.splitlines())) < 5000 and len(text.splitlines()) > 5


def test_meta_survives(tmp_path: Path) -> None:
    plan, path = saved("Residual", tmp_path)
    plan.with_meta(method="lcp", beta=[0.5, -1.25], seed=3).save(path)
    meta = lcprune.Plan.load(path).meta
    assert (meta["method"], meta["beta"], meta["seed"]) == ("lcp", [0.5, -1.25], 3)


def test_plan_from_a_list_in_group_order() -> None:
    _, _, graph = traced("Residual")
    kept = select(graph, "random")
    listed = graph.plan([kept[group.name] for group in graph.groups])
    assert {k: list(map(int, v)) for k, v in listed.kept.items()} == kept


def test_missing_groups_stay_whole() -> None:
    model, _, graph = traced("Residual")
    plan = graph.plan({"block1.0": [0, 2]})
    assert plan.apply(model).block1[0].out_channels == 2
    assert plan.apply(model).stem.out_channels == 8


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"block1.0": [0, 99]}, "99"),
        ({"block1.0": []}, "block1.0"),
        ({"block1.0": [1, 1]}, "block1.0"),
        ({"block1.0": [-1]}, "block1.0"),
        ({"nowhere": [0]}, "nowhere"),
        ([[0]], ""),
    ],
)
def test_impossible_selections_are_refused(kept: Any, said: str) -> None:
    _, _, graph = traced("Residual")
    with pytest.raises(lcprune.PlanError) as error:
        graph.plan(kept)
    assert said in str(error.value)


def _truncated(path: Path, plan: Any) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path, plan: Any) -> None:
    path.write_bytes(b"")


def _binary(path: Path, plan: Any) -> None:
    path.write_bytes(bytes(range(256)))


def _other_json(path: Path, plan: Any) -> None:
    path.write_text('[1, 2, {"version": 1}]')


def _unrelated_object(path: Path, plan: Any) -> None:
    path.write_text('{"name": "something else"}')


def _edit(change: Callable[[Any, dict[str, Any]], None]) -> Callable[[Path, Any], None]:
    def edit(path: Path, plan: Any) -> None:
        document = json.loads(path.read_text())
        change(document, kept_table(document, plan))
        path.write_text(json.dumps(document))

    return edit


def _first_list(table: dict[str, Any]) -> list[int]:
    for value in table.values():
        units = value["kept"] if isinstance(value, dict) else value
        if isinstance(units, list) and len(units) > 1:
            return units
    raise LookupError("kept units are not a list of integers")


def _newer(document: Any, table: dict[str, Any]) -> None:
    key = next(key for key in document if "version" in key)
    document[key] = 999


def _unit_dropped(document: Any, table: dict[str, Any]) -> None:
    _first_list(table).pop()


def _unit_out_of_range(document: Any, table: dict[str, Any]) -> None:
    _first_list(table)[-1] = 10_000


def _unit_not_a_number(document: Any, table: dict[str, Any]) -> None:
    _first_list(table)[-1] = "three"  # type: ignore[call-overload]


def _group_missing(document: Any, table: dict[str, Any]) -> None:
    del table[next(iter(table))]


def _group_renamed(document: Any, table: dict[str, Any]) -> None:
    table["renamed"] = table.pop(next(iter(table)))


def _macs_changed(document: Any, table: dict[str, Any]) -> None:
    document["macs"] += 1


@pytest.mark.parametrize(
    "damage",
    [_truncated, _empty, _binary, _other_json, _unrelated_object]
    + [
        _edit(change)
        for change in (
            _newer,
            _unit_dropped,
            _unit_out_of_range,
            _unit_not_a_number,
            _group_missing,
            _group_renamed,
            _macs_changed,
        )
    ],
    ids=[
        "truncated",
        "empty",
        "binary",
        "other json",
        "unrelated",
        "newer version",
        "unit dropped",
        "unit out of range",
        "unit not a number",
        "group missing",
        "group renamed",
        "macs changed",
    ],
)
def test_damaged_files_are_refused(damage: Callable[[Path, Any], None], tmp_path: Path) -> None:
    plan, path = saved("Residual", tmp_path)
    damage(path, plan)
    with pytest.raises(lcprune.PlanError) as error:
        lcprune.Plan.load(path).apply(ZOO["Residual"].factory())
    assert len(str(error.value)) > 20


def test_newer_version_is_named(tmp_path: Path) -> None:
    plan, path = saved("Residual", tmp_path)
    _edit(_newer)(path, plan)
    with pytest.raises(lcprune.PlanError, match="999"):
        lcprune.Plan.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises((lcprune.PlanError, FileNotFoundError), match=r"nowhere\.json"):
        lcprune.Plan.load(tmp_path / "nowhere.json")


def test_plan_for_another_network_names_the_difference() -> None:
    _, _, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    with pytest.raises(lcprune.PlanError) as error:
        plan.apply(ZOO["PlainConv"].factory())
    message = str(error.value)
    assert any(
        key in message for key in (*ZOO["Residual"].factory().state_dict(), *ZOO["PlainConv"].factory().state_dict())
    )


def test_what_is_no_plan_or_no_network_is_named() -> None:
    model, inputs, graph = traced("PlainConv")
    for use in (lcprune.verify, lcprune.repair):
        with pytest.raises(lcprune.PlanError, match=r"not dict: lcprune\.Plan\.load"):
            use(model, {"kept": [1]}, inputs)
        with pytest.raises(lcprune.PlanError, match=r"torch\.nn\.Module is needed, not function"):
            use(lambda x: x, graph.plan(select(graph, "half")), inputs)


def test_plan_for_another_width_names_the_layer() -> None:
    _, _, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    other = ZOO["Residual"].factory()
    other.block1[0] = torch.nn.Conv2d(8, 7, 3, padding=1)
    other.block1[2] = torch.nn.Conv2d(7, 8, 3, padding=1)
    with pytest.raises(lcprune.PlanError, match=r"block1\.0"):
        plan.apply(other)


def test_plan_does_not_apply_to_its_own_result() -> None:
    model, _, graph = traced("Residual")
    plan = graph.plan(select(graph, "half"))
    with pytest.raises(lcprune.PlanError):
        plan.apply(plan.apply(model))


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    plan, path = saved("Residual", tmp_path)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError, lcprune.LcpruneError)):
        plan.with_meta(bad=object()).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
