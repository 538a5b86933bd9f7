"""MobileNetV2 from ImageNet to Birds-200, pruned there: the paper's section on transfer.

    python benchmarks/paper/birds.py --data cub200:PATH --weights mobilenet_v2.safetensors --out runs/birds --minutes 9
    python benchmarks/paper/birds.py --out runs/birds --list                     # what is done, what is not
    python benchmarks/paper/tables.py --runs runs/birds --show birds birds-rates

Cells (`birds_cells.py`) run one after another in order of value; images are decoded once and live on the device. When
the time is over, a training leaves a checkpoint, and the same command goes on. Choices are made on a tenth of the
training images; test images are looked at when a network is final. `--pack FOLDER` is that of `run.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import lcprune  # noqa: E402
from lcprune import data, models, tune  # noqa: E402
from lcprune.errors import TuneError  # noqa: E402
from lcprune.files import write_json  # noqa: E402
from lcprune.runs import RunFolder  # noqa: E402
from lcprune.study import epoch_rows  # noqa: E402
from lcprune.tune.checkpoint import save_weights  # noqa: E402
from paper.birds_cells import BIRDS, NETWORK, TINY, Birds, cells  # noqa: E402
from paper.cells import DONE, Cell, chosen, percent  # noqa: E402
from paper.pack import pack  # noqa: E402

# A cell that leaves nothing behind when it is stopped is not begun with less time than it takes on a GPU.
LEAST_SECONDS = {"cuts": 45.0, "single_filter": 60.0, "rate": 6.0, "transfer": 10.0, "tune": 10.0}
Summary = dict[str, Any] | None


class Bench:
    """The data, the networks, and where cells leave what they find.

    Args:
        spec: the data set.
        weights: of ImageNet; None starts from random ones.
        out: one folder per cell goes in here.
        scale: how large everything is.
        device: where networks run.
        deadline: as `time.time` counts.
    """

    def __init__(
        self, spec: str, weights: Path | None, out: Path, scale: Birds, device: str, deadline: float = math.inf
    ) -> None:
        self.weights, self.out, self.scale, self.deadline = weights, out, scale, deadline
        self.device = torch.device(device)
        self.precision = "bf16" if self.device.type == "cuda" else "fp32"
        files = data.load(spec, seed=0)
        sized = {n: replace(getattr(files, n), size=scale.size, resize=scale.resize) for n in ("train", "val", "test")}
        files = replace(files, input_shape=(3, scale.size, scale.size), **sized)
        self.dataset = files.decoded(device=self.device, progress=True)
        self.example = models.example_input(NETWORK, shape=self.dataset.input_shape).to(self.device)

    def run(self, cell: Cell) -> bool:
        """Do a cell, or go on with it; False if time ran out first."""
        folder = self.out / cell.name
        settings = {"network": cell.network, "kind": cell.kind, "trial": cell.trial, "data": self.dataset.name}
        settings["options"] = dict(cell.options)
        started = time.perf_counter()
        run = (
            RunFolder.open(folder) if (folder / "config.toml").exists() else RunFolder.create(folder, "paper", settings)
        )
        with run:
            summary: Summary = getattr(self, cell.kind)(cell, run)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if summary is None:
            return False
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        about = {"machine": where, "torch": torch.__version__, **summary}
        about["seconds"] = round(time.perf_counter() - started, 1)
        write_json(folder / DONE, {"cell": asdict(cell), **about})  # last: it says that the cell is complete
        for name in ("checkpoint.safetensors", "model.safetensors"):  # only an unfinished training needs them
            (folder / "tuning" / name).unlink(missing_ok=True)
        return True

    # -- kinds of cells -------------------------------------------------------------------------------------

    def rate(self, cell: Cell, run: RunFolder) -> Summary:
        """A brief transfer; of the test images it sees nothing."""
        recipe = self._recipe(cell.options["rate"], epochs=self.scale.brief)
        row: dict[str, Any] = {"network": f"rate {recipe.lr:g}", "lr": recipe.lr, "head_lr": recipe.head_lr}
        try:
            result = self._fit(self._imagenet(), recipe, run)
        except TuneError as error:  # a rate at which the loss is not finite is not chosen
            _add(run, results=[{**row, "val_accuracy": 0.0, "error": str(error)}])
            return {"recipe": recipe.to_json()}
        if result is None:
            return None
        _add(run, results=[{**row, "val_loss": result.val_loss, "val_accuracy": result.val_accuracy}])
        return {"recipe": recipe.to_json(), "rate": result.images_per_second}

    def transfer(self, cell: Cell, run: RunFolder) -> Summary:
        """The network that is pruned, or the same at another rate."""
        recipe = self._recipe(cell.options.get("rate") or self._best_rate(cell.needs))
        model = self._imagenet()
        result = self._fit(model, recipe, run)
        if result is None:
            return None
        save_weights(run.file("model.safetensors"), model)
        graph = lcprune.trace(model, self.example)
        row = {"network": "original", "method": "original", "limit": None, "seed": 0, "macs_share": 1.0}
        row |= {"macs": graph.macs, "params": graph.params, "lr": recipe.lr, "head_lr": recipe.head_lr}
        row |= self._judge(model, "val", "val_") | self._judge(model, "test")
        _add(run, training=epoch_rows("original", result.history), results=[row])
        return {"recipe": recipe.to_json(), "rate": result.images_per_second}

    def cuts(self, cell: Cell, run: RunFolder) -> Summary:
        """One search at the limit; the networks judged on validation images."""
        scale, limit = self.scale, self.scale.limit
        after = cell.options.get("after", "cut")
        settings = lcprune.Search(pool=scale.pool, iterations=scale.iterations)
        judged = {"images": scale.images, "precision": self.precision, "after": after}
        found = lcprune.pareto(
            self.graph,
            repair="none",
            data=lcprune.Evaluation(self._images(cell.trial), **judged),
            macs=[limit],
            methods=[lcprune.LcP(settings), *(("naive", "uniform") if after == "cut" else ())],
            learn="each",
            multiple_of=1,
            seed=cell.trial,
            run=lcprune.Job(run.file("search"), resume=True),
        )
        rows, schedule = [], []
        for point in found.points:
            point.plan.save(run.file("plans", f"{point.method}.json"))
            row = self._row(cell, point.method, point.plan) | {"full_loss": found.full_loss}
            row["difference"] = point.difference if math.isfinite(point.difference) else None
            judged = self._judge(point.model.to(self.device), "val", "val_")
            rows.append(row | {f"{name}_before": value for name, value in judged.items()})
            schedule += [
                {"network": row["network"], "method": point.method, "limit": limit, "group": group.name}
                | {
                    "position": position,
                    "size": group.size,
                    "kept": len(point.plan.kept.get(group.name, range(group.size))),
                }
                for position, group in enumerate(self.graph.groups)
            ]
        (history,) = found.histories.values()
        curve = [
            {"network": f"lcp {percent(limit)} %", "method": "lcp", "limit": limit, "iteration": record.iteration}
            | {"difference": record.difference, "best": record.best, "naive": history[0].difference}
            for record in history
            if math.isfinite(record.difference)
        ]
        _add(run, search=curve, schedule=schedule, results=rows)
        took = {percent(limit): history[-1].seconds}
        return {"search": {"precision": self.precision, "candidates": settings.total, "seconds": took}}

    def tune(self, cell: Cell, run: RunFolder) -> Summary:
        """Tune one of the cut networks, judge it before and after."""
        name = cell.options.get("plan", cell.options["method"])
        plan = lcprune.Plan.load(self.out / cell.needs[0] / "plans" / f"{name}.json")
        return self._tuned(cell, run, plan, plan.apply(self.baseline))

    def single_filter(self, cell: Cell, run: RunFolder) -> Summary:
        """Prune unit by unit with short tunings in between, then tune."""
        options = {"step": self.scale.step, "tune_steps": self.scale.tune_steps}
        cut = lcprune.prune(
            self.graph,
            repair="none",
            macs=self.scale.limit,
            method=lcprune.baselines.SingleFilter(**options),
            data=lcprune.Evaluation(self._images(cell.trial), images=self.scale.images),
            multiple_of=1,
            seed=cell.trial,
            run=lcprune.Job(run.file("cut"), resume=True),
        )
        done = self._tuned(cell, run, cut.plan, cut.model)
        return None if done is None else {**done, "method": options}

    # -- parts of them --------------------------------------------------------------------------------------

    def _tuned(self, cell: Cell, run: RunFolder, plan: lcprune.Plan, model: nn.Module) -> Summary:
        recipe = self._recipe(self._baseline_rate, seed=cell.trial)
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        result = self._fit(model, recipe, run)
        if result is None:
            return None
        lcprune.save(run.path, model, plan)
        row = (
            self._row(cell, cell.options["method"], plan)
            | self._judge(model, "val", "val_")
            | self._judge(model, "test")
        )
        model.load_state_dict(before)  # the test images come last, also for the network before tuning
        judged = self._judge(model, "val", "val_") | self._judge(model, "test")
        row |= {f"{name}_before": value for name, value in judged.items()}
        epochs = [
            {**e, "method": row["method"], "limit": row["limit"]} for e in epoch_rows(row["network"], result.history)
        ]
        _add(run, training=epochs, results=[row])
        return {"recipe": recipe.to_json(), "rate": result.images_per_second}

    def _fit(self, model: nn.Module, recipe: tune.Recipe, run: RunFolder) -> tune.FitResult | None:
        left = None if self.deadline == math.inf else self.deadline - time.time()
        result = tune.fit(
            model, self.dataset, recipe, run_dir=run.file("tuning"), resume=True, device=self.device, max_seconds=left
        )
        model.eval()
        return result if result.finished else None

    def _recipe(self, rate: float, **changes: Any) -> tune.Recipe:
        known = {"epochs": self.scale.epochs, "batch_size": self.scale.batch, "eval_every": 10, **changes}
        return tune.recipe("transfer", lr=rate, head_lr=10 * rate, precision=self.precision, **known)

    def _best_rate(self, names: Sequence[str]) -> float:
        rows = [RunFolder.open(self.out / name).records("results")[0] for name in names]
        return float(max(rows, key=lambda row: row["val_accuracy"])["lr"])

    @cached_property
    def _baseline_rate(self) -> float:
        return float(RunFolder.open(self.out / "birds" / "baseline").records("results")[0]["lr"])

    def _imagenet(self) -> nn.Module:
        torch.manual_seed(0)  # of the last layer
        return models.build(NETWORK, self.dataset.num_classes, self.weights, new_head=True)

    @cached_property
    def baseline(self) -> nn.Module:
        """The network that is pruned."""
        weights = self.out / "birds" / "baseline" / "model.safetensors"
        return models.build(NETWORK, self.dataset.num_classes, weights).to(self.device).eval()

    @cached_property
    def graph(self) -> lcprune.ChannelGraph:
        """Of it."""
        return lcprune.trace(self.baseline, self.example)

    def _images(self, seed: int) -> data.Batches:
        """Training images that selections are judged on."""
        return self.dataset.batches("train", 100, limit=self.scale.images, seed=seed)

    def _judge(self, model: nn.Module, split: str, prefix: str = "") -> dict[str, float | None]:
        loss, accuracy = tune.evaluate(model, self.dataset, split, batch_size=250, device=self.device)
        return {f"{prefix}loss": loss if math.isfinite(loss) else None, f"{prefix}accuracy": accuracy}

    def _row(self, cell: Cell, method: str, plan: lcprune.Plan) -> dict[str, Any]:
        limit = self.scale.limit
        row = {"network": f"{method} {percent(limit)} %", "method": method, "limit": limit, "seed": cell.trial}
        row |= {"resource": "macs", "macs": int(plan.macs), "params": int(plan.params)}
        return row | {"macs_share": plan.macs / self.graph.macs, "params_share": plan.params / self.graph.params}


def _add(run: RunFolder, **records: Sequence[Mapping[str, Any]]) -> None:
    """Record rows, unless an earlier run that was stopped just then did."""
    for kind, rows in records.items():
        if rows and not run.records(kind):
            run.add(kind, *rows)


def main() -> None:
    options = arguments()
    began = time.time()
    scale = TINY if options.tiny else BIRDS
    wanted = chosen({cell.name: cell for cell in cells(scale)}, options.only)
    done = {cell.name for cell in wanted if (options.out / cell.name / DONE).is_file()}
    if options.list:
        for cell in wanted:
            print(f"{'done' if cell.name in done else 'missing':8} {cell.kind:14} {cell.name}")
        return
    if options.data is None or (options.weights is None and not options.tiny):
        sys.exit("name the data and the weights of ImageNet: --data cub200:PATH --weights mobilenet_v2.safetensors")
    deadline = math.inf if options.minutes is None else began + 60 * options.minutes
    least = LEAST_SECONDS if options.device.startswith("cuda") else {}
    bench = Bench(options.data, options.weights, options.out, scale, options.device, deadline)
    print(f"{time.time() - began:.0f} s: {len(bench.dataset.train)} training images decoded", flush=True)
    for cell in wanted:
        if cell.name in done:
            continue
        if not done.issuperset(cell.needs) or deadline - time.time() < least.get(cell.kind, 0.0):
            print(f"   later {cell.name}", flush=True)
            continue
        started = time.time()
        if bench.run(cell):
            done.add(cell.name)
        print(
            f"{'done' if cell.name in done else 'stopped':>8} {cell.name} ({time.time() - started:.0f} s)", flush=True
        )
    print(f"{time.time() - began:.0f} s: {len(done)} of {len(wanted)} cells done", flush=True)
    if options.pack:
        for line in pack(options.out, options.pack, began):
            print(line, flush=True)


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="cub200:PATH")
    parser.add_argument("--weights", type=Path, help="of ImageNet, as torchvision names them, in safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells")
    parser.add_argument("--only", nargs="+", default=[], help="patterns of names, e.g. 'birds/tune/*/1'")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--pack", type=Path, help="write what this run made as tar files into this folder")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the whole way")
    parser.add_argument("--list", action="store_true", help="say what is done and what is missing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
