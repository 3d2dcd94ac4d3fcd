"""Starts a worker with the options of `celery worker`, in two thirds of its time: `python -m toolfleet_workers`.

Celery's own command imports all other commands first, and those of its plug-ins. Libraries are imported as if the
packages were not installed that they load wherever they find them and no worker uses, and without a search of all installed
packages for plug-ins: that saves a quarter of the start. A set `PYDANTIC_DISABLE_PLUGINS` decides about those of pydantic.
"""

import gc
import importlib
import os
import sys
from collections.abc import Mapping
from importlib import metadata


def main() -> None:
    """Run a worker with the arguments of this process."""
    gc.disable()  # nothing that is loaded goes away again: looking through it, now and then, takes a tenth of the start
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looks through all that is installed, for 20 ms
    load_lean_libraries()
    from celery.bin.base import CLIContext  # after what it would import in full
    from celery.bin.worker import worker

    from toolfleet_registry.errors import SettingsError

    try:
        from toolfleet_workers.main import app  # reads the settings
    except SettingsError as exc:
        sys.exit(str(exc))
    gc.freeze()
    gc.enable()
    worker.main(prog_name="python -m toolfleet_workers", obj=CLIContext(app=app, no_color=True, workdir=None))


_UNUSED: Mapping[str, str] = {
    "structlog": "rich",  # for tracebacks that no worker prints: 40 ms
    "redis": "opentelemetry",  # for metrics of its own, which are not used: 45 ms. Our traces are not its
    "kombu.serialization": "yaml",  # we send JSON: 9 ms
    "celery.bin.base": "pygments",  # for colours of `celery inspect`: 30 ms
    "celery.utils.debug": "psutil",  # for `celery inspect memsample`: 7 ms
}
"""The package that each library is imported without."""


def load_lean_libraries() -> None:
    """Import the libraries so, unless one of the two packages was imported before. Call it before anything imports them.

    They find no plug-ins of Celery and kombu, which are formats of messages and backends that the fleet does not use.
    """
    entry_points, metadata.entry_points = metadata.entry_points, _none  # type: ignore[assignment] # asked for groups only
    try:
        for library, unused in _UNUSED.items():
            if library not in sys.modules and unused not in sys.modules:
                _import_without(library, unused)
        importlib.import_module("kombu.matcher")
    finally:
        metadata.entry_points = entry_points


def _none(**_: object) -> tuple[()]:
    return ()


def _import_without(library: str, unused: str) -> None:
    sys.modules[unused] = None  # type: ignore[assignment] # what Python itself takes for a module that cannot be had
    try:
        importlib.import_module(library)
    finally:
        del sys.modules[unused]


if __name__ == "__main__":
    main()
