"""How long networks take: measured side by side, and as a limit.

```python
records = lcprune.latency.measure({"original": model, "pruned": smaller}, example_input)
result = lcprune.prune(model, example_input, latency=lcprune.Latency("60%", batch=8, backend="onnx"), data=batches)
```
"""

from lcprune.latency.backends import BACKENDS, Backend, make_backend
from lcprune.latency.limit import Latency, LatencyOutcome, Table
from lcprune.latency.measure import OUT_OF_MEMORY, LatencyRecord, measure, measure_networks
from lcprune.onnx_runtime import share_threads

__all__ = [
    "BACKENDS",
    "OUT_OF_MEMORY",
    "Backend",
    "Latency",
    "LatencyOutcome",
    "LatencyRecord",
    "Table",
    "make_backend",
    "measure",
    "measure_networks",
    "share_threads",
]
