"""Which fraction a layer schedule asks of each group."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from lcprune.errors import ConfigError


def match_fractions(fractions: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """The fraction to keep of each group.

    Args:
        fractions: group name or shell pattern -> fraction. A name goes before patterns, an earlier pattern
            before a later one.
        names: the groups.

    Returns:
        (groups,), 1 where nothing matches.

    Raises:
        ConfigError: a key matches no group, or a fraction is not from 0 to 1.
    """
    for key, fraction in fractions.items():
        if isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ConfigError(f"schedule {key!r}: {fraction!r} is not a fraction; give one from 0 to 1, e.g. 0.5")
        if key not in names and not any(fnmatchcase(name, key) for name in names):
            near = difflib.get_close_matches(key, names, n=3, cutoff=0.3) or list(names[:3])
            raise ConfigError(f"schedule {key!r} matches no group; there are e.g. {', '.join(near)}")
    keep = np.ones(len(names))
    for position, name in enumerate(names):
        keys = [name] if name in fractions else [key for key in fractions if fnmatchcase(name, key)]
        if keys:
            keep[position] = fractions[keys[0]]
    return keep
