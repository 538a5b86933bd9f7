"""What a person types and sees."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `lcprune`; returns the exit code (the console script passes it on)."""
    # Imported here: `import lcprune` must not need what only the command line needs.
    from lcprune.errors import MissingDependencyError

    try:
        from lcprune.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        raise MissingDependencyError(f"the command line needs {error.name}: pip install lcprune") from None
    return run(arguments)
