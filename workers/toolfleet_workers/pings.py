"""Whether a worker or beat of this machine answers: what a container's health check asks."""

from celery.utils.nodenames import gethostname
from kombu.exceptions import OperationalError

from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app

_ANSWER_SECONDS = 3.0  # a healthy event loop answers within milliseconds; a busy machine may need longer


def answers(role: str, settings: Settings) -> bool:
    """Whether a process that `commands` started in this role (a lane, or `beat`) answers a ping through the broker."""
    app = make_app(settings)
    named = f"{role}-*@{gethostname()}"
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
            found = app.control.ping(
                connection=connection, timeout=_ANSWER_SECONDS, limit=1, pattern=named, matcher="glob"
            )
        except OperationalError:
            return False
    return bool(found)
