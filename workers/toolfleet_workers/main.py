"""Makes this process a worker: `celery -A toolfleet_workers.main worker`."""

import resource

from toolfleet_registry.settings import load_settings
from toolfleet_registry.system.process import hide_process
from toolfleet_workers.worker_app import make_worker_app

OPEN_FILES = 65_536  # enough for any number of calls in flight; "unlimited" makes some libraries count to infinity


def allow_open_files() -> None:
    """Raise our limit of open files: each call in flight has a connection, and 1024 is a usual default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


allow_open_files()
app = make_worker_app(load_settings())
if app.settings.hide_process:
    hide_process()
