"""Starts a worker with the options of `celery worker`, up in two thirds of the time: `python -m toolfleet_workers`.

Celery's own command imports every other one first, and those of its plug-ins.
"""

import gc
import sys

from toolfleet_workers.lean_imports import load_lean_libraries


def main() -> None:
    """Run a worker with the arguments of this process."""
    gc.disable()  # nothing that is loaded goes away again: looking through it, now and then, takes a tenth of the start
    load_lean_libraries()
    from celery.bin.base import CLIContext  # noqa: PLC0415 - after what it would import in full
    from celery.bin.worker import worker  # noqa: PLC0415 - as above

    from toolfleet_registry.errors import SettingsError  # noqa: PLC0415 - as above

    try:
        from toolfleet_workers.main import app  # noqa: PLC0415 - reads the settings
    except SettingsError as exc:
        sys.exit(str(exc))
    gc.freeze()
    gc.enable()
    worker.main(prog_name="python -m toolfleet_workers", obj=CLIContext(app=app, no_color=True, workdir=None))


if __name__ == "__main__":
    main()
