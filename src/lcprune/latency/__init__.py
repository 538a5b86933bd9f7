"""How long networks take: measured here, or predicted from a table of their layers.

records = lcprune.latency.measure({"original": model, "pruned": smaller}, example_input)
table = lcprune.latency.measure_table(graph, batch=1, backend="eager")
predict = lcprune.latency.Predictor(table, graph)      # kept counts -> milliseconds
"""

from lcprune.latency.backends import BACKENDS, make_backend
from lcprune.latency.build import cache_folder, measure_networks, measure_table
from lcprune.latency.clock import Clock, make_clock
from lcprune.latency.limit import LatencyOutcome, parse_latency
from lcprune.latency.measure import OUT_OF_MEMORY, LatencyRecord, measure
from lcprune.latency.onnx import share_threads
from lcprune.latency.predict import Predictor
from lcprune.latency.table import Table, blank

__all__ = [
    "BACKENDS",
    "OUT_OF_MEMORY",
    "Clock",
    "LatencyOutcome",
    "LatencyRecord",
    "Predictor",
    "Table",
    "blank",
    "cache_folder",
    "make_backend",
    "make_clock",
    "measure",
    "measure_networks",
    "measure_table",
    "parse_latency",
    "share_threads",
]
