"""Records on disk: written at once, read back whole, refused when they belong to something else."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lcprune.errors import SearchError
from lcprune.search import Record, Search, SearchRecords, Space, make_sampler, read_records, run_search

CONFIG = {"seed": 0, "limits": {"macs": 500.0}, "search.pool": 4}


def record(iteration: int, loss: float = 0.1 + 0.2) -> Record:
    return Record(iteration, loss, loss, [1e-300, 1 / 3], [3, 4], 10.0, 7.0, loss, False, 0.5)


def write(path, count: int = 3) -> None:
    records = SearchRecords(path, CONFIG)
    records.start([np.array([1 / 3, 2.0]), np.array([math.pi])], full_loss=0.25)
    for index in range(count):
        records.append(record(index))
    records.close()


def test_records_come_back_to_the_last_digit(tmp_path) -> None:
    write(tmp_path / "search.jsonl")
    again = SearchRecords(tmp_path / "search.jsonl", CONFIG, resume=True)
    assert again.replayed == [record(index) for index in range(3)]
    assert [score.tolist() for score in again.scores] == [[1 / 3, 2.0], [math.pi]]
    head, records = read_records(tmp_path / "search.jsonl")
    assert head["config"] == CONFIG and head["full_loss"] == 0.25 and records == again.replayed


def test_infinite_losses_come_back_and_the_file_is_plain_json(tmp_path) -> None:
    records = SearchRecords(tmp_path / "search.jsonl", CONFIG)
    records.start([np.ones(2)], 0.0)
    records.append(record(0, math.inf))
    records.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for line in (tmp_path / "search.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert SearchRecords(tmp_path / "search.jsonl", CONFIG, resume=True).replayed[0].loss == math.inf


def test_each_record_is_in_the_file_as_soon_as_it_is_made(tmp_path) -> None:
    records = SearchRecords(tmp_path / "search.jsonl", CONFIG)
    records.start([np.ones(2)], 0.0)
    for index in range(3):
        records.append(record(index))
        assert len(read_records(tmp_path / "search.jsonl")[1]) == index + 1
    records.close()


@pytest.mark.parametrize("torn", [b'{"iteration": 3, "lo', b"\x00\xff", b'{"iteration": 3}'])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path, torn) -> None:
    path = tmp_path / "search.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(read_records(path)[1]) == 3
    assert path.read_bytes() == whole + torn  # reading changes nothing
    again = SearchRecords(path, CONFIG, resume=True)
    assert len(again.replayed) == 3
    again.start([], 0.0)
    again.append(record(3))
    again.close()
    assert path.read_bytes().startswith(whole)
    assert [r.iteration for r in read_records(path)[1]] == [0, 1, 2, 3]


def test_a_torn_first_line_starts_anew(tmp_path) -> None:
    path = tmp_path / "search.jsonl"
    path.write_text('{"format": 2, "conf')
    again = SearchRecords(path, CONFIG, resume=True)
    assert again.replayed == [] and again.scores is None
    again.start([np.ones(1)], 0.0)
    again.close()
    assert read_records(path)[0]["config"] == CONFIG


def test_damage_inside_the_file_is_refused_with_the_line(tmp_path) -> None:
    path = tmp_path / "search.jsonl"
    write(path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2][:20] + "\n"
    path.write_text("".join(lines))
    with pytest.raises(SearchError, match="line 3"):
        SearchRecords(path, CONFIG, resume=True)


def test_another_configuration_is_refused_naming_the_difference(tmp_path) -> None:
    write(tmp_path / "search.jsonl")
    before = (tmp_path / "search.jsonl").read_bytes()
    with pytest.raises(SearchError, match="seed: 0 in the records, 1 now") as caught:
        SearchRecords(tmp_path / "search.jsonl", {**CONFIG, "seed": 1}, resume=True)
    assert "limits" not in str(caught.value)
    with pytest.raises(SearchError, match=r"search\.images: None in the records, 3000 now"):
        SearchRecords(tmp_path / "search.jsonl", {**CONFIG, "search.images": 3000}, resume=True)
    assert (tmp_path / "search.jsonl").read_bytes() == before


def test_records_are_not_written_over_by_accident(tmp_path) -> None:
    write(tmp_path / "search.jsonl")
    with pytest.raises(SearchError, match="resume=True"):
        SearchRecords(tmp_path / "search.jsonl", CONFIG)


def test_some_other_file_is_refused(tmp_path) -> None:
    (tmp_path / "search.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(SearchError, match="does not hold search records"):
        SearchRecords(tmp_path / "search.jsonl", CONFIG, resume=True)


class Judge:
    """Losses by formula; counts what it was asked."""

    def __init__(self) -> None:
        self.known: dict[bytes, float] = {}
        self.computed = 0

    def loss(self, kept):
        key = b"|".join(units.tobytes() for units in kept)
        if key not in self.known:
            self.computed += 1
            self.known[key] = float(sum(np.sum(units) for units in kept) % 7)
        return self.known[key]

    def knows(self, kept) -> bool:
        return b"|".join(units.tobytes() for units in kept) in self.known

    def remember(self, kept, loss: float) -> None:
        self.known[b"|".join(units.tobytes() for units in kept)] = loss


class Sizes:
    def macs(self, counts) -> float:
        return float(np.sum(counts))

    params = macs


def loop(search: Search, judge: Judge, records: SearchRecords | None = None):
    sampler = make_sampler(Space(np.ones(3)), search, 0)

    def select(beta):
        return [np.arange(1 + int(abs(10 * value)) % 9) for value in beta]

    return run_search(sampler, select, judge, Sizes(), 0.5, records or SearchRecords(None, {}))


def test_equal_selections_are_computed_once_and_marked() -> None:
    judge = Judge()
    found = loop(Search(pool=20, iterations=300), judge)
    assert len(found.history) == 320
    assert judge.computed == sum(not record.cached for record in found.history) < 320


def test_patience_stops_after_so_many_candidates_without_improvement() -> None:
    full = loop(Search(pool=20, iterations=300), Judge())
    early = loop(Search(pool=20, iterations=300, patience=25), Judge())
    assert 45 <= len(early.history) < 320
    assert [r.beta for r in early.history] == [r.beta for r in full.history[: len(early.history)]]
    best = min(range(len(early.history)), key=lambda index: early.history[index].difference)
    assert len(early.history) - 1 - max(best, 19) == 25


def test_patience_counts_at_once_where_there_is_no_first_pool() -> None:
    found = loop(Search(pool=300, iterations=0, algorithm="random", patience=10), Judge()).history
    best = min(range(len(found)), key=lambda index: found[index].difference)
    assert len(found) == best + 11 < 300


def test_best_so_far_never_rises_and_ends_at_the_result() -> None:
    found = loop(Search(pool=20, iterations=100), Judge())
    bests = [record.best for record in found.history]
    assert bests == np.minimum.accumulate([record.difference for record in found.history]).tolist()
    assert bests[-1] == found.difference <= found.naive


def test_finalists_are_judged_again_and_naive_is_among_them() -> None:
    search = Search(pool=20, iterations=100, finalists=4)
    sampler = make_sampler(Space(np.ones(3)), search, 0)
    select = lambda beta: [np.arange(1 + int(abs(10 * value)) % 9) for value in beta]  # noqa: E731
    asked = []

    def precise(kept):
        asked.append(tuple(map(len, kept)))
        return 0.0 if asked[-1] == (1, 1, 1) else 1.0  # naive turns out to be best after all

    found = run_search(sampler, select, Judge(), Sizes(), 0.5, SearchRecords(None, {}), precise=precise)
    assert len(asked) == 5 and asked[0] == (1, 1, 1)
    assert np.all(found.beta == 0) and found.difference == found.naive == 0.0


def test_nothing_finite_is_an_error() -> None:
    judge = Judge()
    judge.loss = lambda kept: math.nan  # type: ignore[method-assign]
    with pytest.raises(SearchError, match="none of 30 candidates has a finite loss"):
        loop(Search(pool=20, iterations=10), judge)
