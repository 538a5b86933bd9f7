"""What a person types and sees."""

from lcprune.cli.app import main

__all__ = ["main"]
