"""Small networks, one idiom each, with what a trace of them must find."""

from zoo import (
    along,
    attributes,
    broadcasts,
    composed,
    found,
    interfaces,
    layers,
    mixing,
    moves,
    norms,
    refused,
    sequences,
)
from zoo.entry import ZOO, Entry, randomise, seeded

__all__ = [
    "ZOO",
    "Entry",
    "along",
    "attributes",
    "broadcasts",
    "composed",
    "found",
    "interfaces",
    "layers",
    "mixing",
    "moves",
    "norms",
    "randomise",
    "refused",
    "seeded",
    "sequences",
]
