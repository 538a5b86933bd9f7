"""Carrying cells from one machine to another: tar files of a limited size, small things first."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

PART_BYTES = 15 * 2**20
PARTS = 6


def pack(out: Path, folder: Path, since: float) -> list[str]:
    """Write everything under `out` that changed since then into FOLDER/records.tar.gz and FOLDER/part-N.tar.

    Records and plans go first, then checkpoints of unfinished tunings, then weights of finished networks, the smallest
    first, until the parts are full.

    Args:
        out: folder of the cells.
        folder: where the tar files go.
        since: time stamp, as `time.time` counts.

    Returns:
        One line about each file written, and about what found no place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [p for p in out.rglob("*") if p.is_file() and not p.name.startswith(".") and p.stat().st_mtime >= since]
    files = [p for p in files if "mps" not in p.relative_to(out).parts]
    huge = [p for p in files if p.stat().st_size > PART_BYTES]
    heavy = [p for p in files if p.suffix == ".safetensors" and p not in huge]
    light = [p for p in files if p.suffix != ".safetensors"]
    said = []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in sorted(light):
            tar.add(path, arcname=path.relative_to(out))
    (folder / "records.tar.gz").write_bytes(buffer.getvalue())
    said.append(f"records.tar.gz: {len(light)} files, {len(buffer.getvalue()) / 2**20:.1f} MB")
    heavy.sort(key=lambda p: (p.name != "checkpoint.safetensors", p.stat().st_size))
    parts: list[list[Path]] = []
    size = PART_BYTES + 1
    for path in heavy:
        size += path.stat().st_size
        if size > PART_BYTES:
            parts.append([])
            size = path.stat().st_size
        parts[-1].append(path)
    for number, part in enumerate(parts[:PARTS], start=1):
        with tarfile.open(folder / f"part-{number}.tar", "w") as tar:
            for path in part:
                tar.add(path, arcname=path.relative_to(out))
        said.append(f"part-{number}.tar: {len(part)} files")
    left = [str(path.relative_to(out)) for part in [*parts[PARTS:], huge] for path in part]
    return said + ([f"no place for {', '.join(left)}"] if left else [])
