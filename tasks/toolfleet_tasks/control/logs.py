"""Configures the logs of the fleet's processes: structlog, and Celery's own lines through it; `call_id` and `tool` where bound."""

import logging
import sys

import structlog

from toolfleet_registry.settings import Settings

_QUIET = (
    "httpx",  # a line a request
    "kombu",
    "amqp",
    "celery.pool",  # a line a call, with the whole message
    "celery.worker.strategy",  # a line a call, in addition to our own
    "celery.app.trace",  # the same, and with the whole result: people's data
)


def configure_logs(settings: Settings) -> None:
    """Send everything to stderr, as JSON lines or, for people, as text. Safe to call twice."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Drops a line below the level before anything is done for it: a worker has three a call.
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        cache_logger_on_first_use=False,  # a test or an agent may configure structlog again
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_last_steps(settings))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _last_steps(settings: Settings) -> list[structlog.typing.Processor]:
    clean = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if settings.log_format == "json":
        return [clean, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Plain tracebacks: the pretty ones print local variables, which hold people's data.
    plain = structlog.dev.plain_traceback
    return [clean, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
