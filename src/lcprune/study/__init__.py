"""Studies: one network pruned in one or several ways, each result tuned, judged and recorded in a run folder."""

from lcprune.study.jobs import NetworkJob, make_network, run_jobs
from lcprune.study.latency import latency_rows, record_latency
from lcprune.study.metric_error import record_metric_error
from lcprune.study.networks import Network, open_network, trace_network
from lcprune.study.reachable import check_reachable
from lcprune.study.study import ORIGINAL, Study, epoch_rows, judge, save_plain

__all__ = [
    "ORIGINAL",
    "Network",
    "NetworkJob",
    "Study",
    "check_reachable",
    "epoch_rows",
    "judge",
    "latency_rows",
    "make_network",
    "open_network",
    "record_latency",
    "record_metric_error",
    "run_jobs",
    "save_plain",
    "trace_network",
]
