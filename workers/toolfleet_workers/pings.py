"""Whether a worker or beat of this machine answers: what a container's health check asks."""

from celery.utils.nodenames import gethostname

from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app

_ANSWER_SECONDS = 3.0  # a healthy event loop answers within milliseconds; a busy machine may need longer


def answers(role: str, settings: Settings) -> bool:
    """Whether a process that `commands` started in this role (a lane, or `beat`) answers a ping."""
    app = make_app(settings)
    return bool(app.control.ping(timeout=_ANSWER_SECONDS, limit=1, pattern=f"{role}-*@{gethostname()}", matcher="glob"))
