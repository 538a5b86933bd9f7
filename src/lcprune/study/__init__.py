"""Studies: one network pruned in one or several ways, each result tuned, judged and recorded in a run folder."""

from lcprune.study.job import ORIGINAL, NetworkJob, cost_row, epoch_rows
from lcprune.study.jobs import make_network, run_jobs
from lcprune.study.measured import record_latency, record_metric_error
from lcprune.study.networks import Network, check_reachable, gives_scores, open_network, trace_network
from lcprune.study.study import Study, judge

__all__ = [
    "ORIGINAL",
    "Network",
    "NetworkJob",
    "Study",
    "check_reachable",
    "cost_row",
    "epoch_rows",
    "gives_scores",
    "judge",
    "make_network",
    "open_network",
    "record_latency",
    "record_metric_error",
    "run_jobs",
    "trace_network",
]
