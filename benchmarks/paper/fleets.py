"""Cells that are tuned together: those of one network and one recipe, at the same place, as one fleet."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paper.cells import Cell
    from paper.work import Bench

# How a cell ended, other than "done", "stopped" and what went wrong: it is to be done again, with others or by itself.
AGAIN, ALONE = "again", "alone"


def key_of(cell: Cell, out: Path) -> Hashable | None:
    """What the cells of a fleet have in common; None for a cell that is done by itself.

    Args:
        cell: any.
        out: folder of the cells, where checkpoints say how far each is.
    """
    if cell.kind == "objective":
        return cell.kind, cell.network, cell.options["limit"]
    if cell.kind == "tune":
        from lcprune.errors import TuneError
        from lcprune.tune.checkpoint import place_in

        try:
            place = place_in(out / cell.name / "tuning" / "checkpoint.safetensors")
        except TuneError:  # damaged: by itself, where it says so
            return None
        recipe = json.dumps(cell.options["recipe"], sort_keys=True)
        return cell.kind, cell.network, recipe, place
    return None


def do(bench: Bench, cells: Sequence[Cell], deadline: float) -> dict[str, str]:
    """Do some cells of one key, or go on with them; says how each ended.

    Args:
        bench: where it is done.
        cells: one, or a fleet.
        deadline: as `time.time` counts; tunings stop there and leave checkpoints.
    """
    import torch

    from lcprune.errors import TuneError
    from lcprune.tune import LostMembers

    names = [cell.name for cell in cells]
    try:
        if len(cells) == 1:
            return {names[0]: "done" if bench.run(cells[0], deadline) else "stopped"}
        return (_study if cells[0].kind == "objective" else _tune)(bench, cells, deadline)
    except KeyboardInterrupt:
        return dict.fromkeys(names, "stopped")
    except Exception as error:
        traceback.print_exc()
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if isinstance(error, LostMembers):
            return {name: told if number in error.members else AGAIN for number, name in enumerate(names)}
        # No fleet of these: each by itself, which says what is wrong if that is no help.
        alone = isinstance(error, TuneError) and len(cells) > 1
        return dict.fromkeys(names, ALONE if alone else told)
    finally:
        gc.collect()  # captured graphs hold memory that the next cells may want
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def _study(bench: Bench, cells: Sequence[Cell], deadline: float) -> dict[str, str]:
    from paper import objectives

    started = time.perf_counter()
    found = objectives.study(bench, cells, deadline)
    if found is None:
        return dict.fromkeys((cell.name for cell in cells), "stopped")
    took = round((time.perf_counter() - started) / len(cells), 1)
    for cell, one in zip(cells, found, strict=True):
        with bench.open(cell) as run:
            summary = one.keep(run)
        bench.close(cell, {"seconds": took, **summary})
    return dict.fromkeys((cell.name for cell in cells), "done")


def _tune(bench: Bench, cells: Sequence[Cell], deadline: float) -> dict[str, str]:
    from lcprune import tune
    from paper.work import Tuning, seconds_until

    members = [Tuning(bench, cell, bench.open(cell)) for cell in cells]
    results = tune.fit_fleet(
        members[0].full,
        [member.plan for member in members],
        bench.dataset,
        members[0].recipe,
        models=[member.model for member in members],
        seeds=[member.recipe.seed for member in members],
        run_dirs=[member.run.file("tuning") for member in members],
        device=bench.device,
        teacher=members[0].teacher(),
        resume=True,
        progress=False,
        max_seconds=seconds_until(deadline),
    )
    outcomes = {}
    for member, result in zip(members, results, strict=True):
        # A finished tuning has its checkpoint: judging can wait for the next run.
        if result.finished and time.time() < deadline:
            with member.run:
                summary = member.judged(result)
            bench.close(member.cell, {**summary, "fleet": len(cells)})
            outcomes[member.cell.name] = "done"
        else:
            outcomes[member.cell.name] = "stopped"
    return outcomes
