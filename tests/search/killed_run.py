"""A run to be killed: prunes a digits network, slowly enough to be caught at it.

python killed_run.py FOLDER WEIGHTS SECONDS_PER_CANDIDATE [resume]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import digit_networks

import lcprune

torch.set_num_threads(1)


def main(folder: str, weights: str, pause: str, resume: bool) -> None:
    images, labels, _, _ = digit_networks.digits()
    model = digit_networks.plain(width=8)
    model.load_state_dict(torch.load(weights, weights_only=True))

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        time.sleep(float(pause))
        return torch.nn.functional.cross_entropy(output, target)

    result = lcprune.prune(
        model.eval(),
        images[:2],
        macs=0.4,
        metric="taylor",
        data=digit_networks.batches(images, labels),
        loss_fn=loss_fn,
        search=lcprune.Search(pool=12, iterations=48, sample=4, images=100, recalibrate=False),
        run_dir=folder,
        resume=resume,
        progress=False,
    )
    outcome = {
        "kept": {name: list(units) for name, units in result.plan.kept.items()},
        "history": [(r.iteration, r.loss, r.difference, r.beta, r.counts, r.best) for r in result.history],
        "weights": {name: value.double().sum().item() for name, value in result.model.state_dict().items()},
    }
    Path(folder, "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], resume="resume" in sys.argv[4:])
