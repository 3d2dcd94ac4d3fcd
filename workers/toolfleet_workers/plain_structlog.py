"""Imports structlog as if rich were not installed: for tracebacks that no worker prints, rich takes a tenth of a worker's start."""

import importlib
import sys


def load_plain_structlog() -> None:
    """Import structlog without rich, unless it has been imported. Before anything that imports structlog."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # what Python itself takes for a module that cannot be had
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
