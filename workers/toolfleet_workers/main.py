"""The worker's composition root: `celery -A toolfleet_workers.main worker`."""

from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_workers import bootsteps
from toolfleet_workers.executors.http import HttpExecutor
from toolfleet_workers.middleware.call_log import CallLog
from toolfleet_workers.runner import CallRunner


def make_worker_app(settings: Settings) -> FleetApp:
    """An app that can run calls: of the settings' lane, against their modules."""
    app = make_app(settings, lane=settings.lane)
    executor = HttpExecutor(settings.module_services, max_reply_bytes=settings.max_reply_bytes)
    app.runner = CallRunner(executor, middleware=[CallLog()])
    bootsteps.install(app)
    return app


app = make_worker_app(load_settings())
