"""The `toolfleet` command. Client commands load no worker library, and each command loads only what it needs."""

from toolfleet_workers.cli.app import main

__all__ = ["main"]
