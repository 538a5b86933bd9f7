"""One limit, parsed once: what may be written, what it means, and what is said of anything else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcprune import BudgetError
from lcprune.limit import COUNT, MS, SHARE, Limit, format_count, parse_limits

MACS = [
    ("50%", 0.5, SHARE),
    (" 12.5 % ", 0.125, SHARE),
    ("0.5", 0.5, SHARE),
    ("1", 1.0, SHARE),
    (1, 1.0, SHARE),
    ("100%", 1.0, SHARE),
    (0.25, 0.25, SHARE),
    (np.float32(0.25), 0.25, SHARE),
    ("62.7M", 62.7e6, COUNT),
    ("0.4m", 4e5, COUNT),
    ("1.2G", 1.2e9, COUNT),
    ("30k", 3e4, COUNT),
    ("62700000", 62.7e6, COUNT),
    ("6e7", 6e7, COUNT),
    (62.7e6, 62.7e6, COUNT),
    (np.int64(200), 200.0, COUNT),
]
LATENCIES = [
    ("3.5ms", 3.5, MS),
    ("0.8 ms", 0.8, MS),
    ("5e-05ms", 5e-5, MS),
    ("350us", 0.35, MS),
    ("0.0035s", 3.5, MS),
    ("60%", 0.6, SHARE),
    (0.6, 0.6, SHARE),
    (3, 3.0, MS),
    ("3.5", 3.5, MS),
]


@pytest.mark.parametrize(("name", "written", "number", "unit"), [("macs", *case) for case in MACS])
def test_shares_and_counts(name, written, number, unit) -> None:
    assert Limit.parse(written, name) == Limit.parse(written, "params") == Limit(number, unit)


@pytest.mark.parametrize(("written", "number", "unit"), LATENCIES)
def test_latencies(written, number, unit) -> None:
    assert Limit.parse(written, "latency") == Limit(number, unit)


def test_shares_and_absolute_numbers_are_not_mistaken_for_one_another() -> None:
    assert Limit.parse("0.8ms", "latency").of(0.4) == 0.8
    assert Limit.parse("60%", "latency").of(0.4) == pytest.approx(0.24)
    assert Limit.parse("62.7M").of(1e9) == 62.7e6 and Limit.parse(0.5).of(1e9) == 5e8


@pytest.mark.parametrize(
    ("name", "written", "words"),
    [
        ("macs", "0", r"macs='0' must be more than 0"),
        ("params", 0, r"params=0 must be more than 0.*params='50%'"),
        ("macs", "0%", "more than 0"),
        ("macs", "-5M", "more than 0"),
        ("macs", -0.5, r"macs=-0\.5 must be more than 0"),
        ("macs", float("nan"), "more than 0"),
        ("macs", float("inf"), "more than 0"),
        ("macs", "150%", "more than the whole"),
        ("macs", "50", r"macs='50' is ambiguous; did you mean 50% .a share. or 50M"),
        ("params", 50, "did you mean 50% .a share. or 50M"),
        ("macs", "3.5ms", r"macs='3\.5ms' has the wrong unit: .*'50%'"),
        ("macs", "half", r"macs='half' is not a limit: .*macs=0\.5"),
        ("macs", "", "is not a limit"),
        ("macs", "nan", "is not a limit"),
        ("macs", True, "macs=True is not a limit"),
        ("macs", [0.5], "is not a limit"),
        ("latency", "fast", r"latency='fast' is not a limit: give milliseconds such as '3\.5ms'"),
        ("latency", "3.5M", r"wrong unit: .*'3\.5ms'"),
        ("latency", "120%", "more than the whole"),
        ("latency", "0ms", r"'3\.5ms'"),
        ("latency", None, r"latency=None .*'3\.5ms'"),
    ],
)
def test_what_is_no_limit_is_quoted(name, written, words) -> None:
    with pytest.raises(BudgetError, match=words):
        Limit.parse(written, name)


def test_one_limit_or_several() -> None:
    assert parse_limits("50%") == parse_limits([0.5]) == (Limit(0.5),)
    assert parse_limits(np.array([0.5, 0.2])) == (Limit(0.5), Limit(0.2))
    assert parse_limits(("3ms", "50%"), "latency") == (Limit(3.0, MS), Limit(0.5))


@pytest.mark.parametrize(("name", "written"), [("macs", c[0]) for c in MACS] + [("latency", c[0]) for c in LATENCIES])
def test_a_limit_survives_a_file(name, written) -> None:
    limit = Limit.parse(written, name)
    assert Limit.parse(str(limit), name) == limit


@given(st.decimals(min_value="0.0001", max_value=100, places=4))
def test_a_percentage_survives_a_file_to_the_bit(percent) -> None:
    limit = Limit.parse(f"{percent}%")
    assert Limit.parse(str(limit)).number == limit.number


@given(st.integers(100, 10**12))
def test_a_count_is_written_to_four_digits(value) -> None:
    assert Limit.parse(format_count(value)).number == pytest.approx(value, rel=5e-4)


def test_labels() -> None:
    labels = [Limit.parse(written).label for written in ("50%", 0.125, "62.7M")]
    assert [*labels, Limit.parse("0.35ms", "latency").label] == ["50 %", "12.5 %", "62.7 M", "0.35 ms"]
