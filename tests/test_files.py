"""Configurations survive being written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcprune.errors import ConfigError
from lcprune.files import dump_toml, parse_toml, read_toml

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=True),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",))),
)
flat = st.dictionaries(st.text(min_size=1), st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4)


@given(flat, st.dictionaries(st.sampled_from(["search", "tune"]), flat.filter(bool), max_size=2))
def test_what_was_written_is_read_again(options, sections):
    values = {**{f"o{k}": v for k, v in options.items()}, **sections}
    assert parse_toml(dump_toml(values)) == values


def test_none_is_left_out():
    assert dump_toml({"a": None, "b": 1, "s": {"c": None}}) == "b = 1\n\n[s]\n"


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("x = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not a TOML file"):
        read_toml(tmp_path / "bad.toml")


def test_a_mapping_in_a_section_survives():
    values = {"method": "schedule", "schedule": {"shares": {"layer1.*": 0.5, "fc": 1}}}
    assert parse_toml(dump_toml(values)) == values
