"""Small networks, one idiom each, with what a trace of them must find."""

from zoo import attributes, broadcasts, composed, found, interfaces, layers, mixing, moves, norms, refused
from zoo.entry import ZOO, Entry, randomise, seeded

__all__ = [
    "ZOO",
    "Entry",
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
]
