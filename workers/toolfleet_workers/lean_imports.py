"""Imports libraries as if packages were not installed that they load wherever they find them, and no worker uses: a sixth of its start."""

import importlib
import sys
from collections.abc import Mapping

_UNUSED: Mapping[str, str] = {
    "structlog": "rich",  # for tracebacks that no worker prints: 40 ms
    "redis": "opentelemetry",  # for metrics of its own, which are not used: 45 ms. Our traces are not its
    "kombu.serialization": "yaml",  # we send JSON: 9 ms
    "celery.bin.base": "pygments",  # for colours of `celery inspect`: 30 ms
    "celery.utils.debug": "psutil",  # for `celery inspect memsample`: 7 ms
}
"""What each library is imported without."""


def load_lean_libraries() -> None:
    """Import them so, each unless it or the other package has been imported. Before anything that imports one of them."""
    for library, unused in _UNUSED.items():
        if library not in sys.modules and unused not in sys.modules:
            _import_without(library, unused)


def _import_without(library: str, unused: str) -> None:
    sys.modules[unused] = None  # type: ignore[assignment] # what Python itself takes for a module that cannot be had
    try:
        importlib.import_module(library)
    finally:
        del sys.modules[unused]
