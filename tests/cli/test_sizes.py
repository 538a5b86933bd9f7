"""Sizes as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcprune.cli.sizes import format_count, format_size, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50%", 0.5),
        (" 12.5 % ", 0.125),
        ("0.5", 0.5),
        ("1", 1.0),
        ("100%", 1.0),
        ("62.7M", 62.7e6),
        ("0.4m", 4e5),
        ("1.2G", 1.2e9),
        ("30k", 3e4),
        ("62700000", 62.7e6),
        ("6e7", 6e7),
        (0.25, 0.25),
    ],
)
def test_sizes_are_understood(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "more than 0"),
        ("0%", "more than 0"),
        ("-5M", "more than 0"),
        ("150%", "more than the whole"),
        ("50", "50% .a share. or 50M"),
        ("abc", "is not a size"),
        ("", "is not a size"),
        ("nan", "is not a size"),
    ],
)
def test_what_cannot_be_meant_is_explained(text, words):
    with pytest.raises(ValueError, match=words):
        parse_size(text)


def test_several_sizes():
    assert parse_sizes("20%, 0.5,62.7M") == [0.2, 0.5, 62.7e6]
    with pytest.raises(ValueError, match="twice"):
        parse_sizes("50%,0.5")
    with pytest.raises(ValueError, match="no size"):
        parse_sizes(",")


@given(st.integers(100, 10**12))
def test_a_count_is_written_to_four_digits(value):
    assert parse_size(format_count(value).replace(" ", "")) == pytest.approx(value, rel=5e-4)


def test_limits_are_shown_as_they_are_meant():
    assert [format_size(v) for v in (0.5, 0.125, 62.7e6)] == ["50 %", "12.5 %", "62.7 M"]
