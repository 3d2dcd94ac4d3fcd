"""Writes the bodies that workers send to a module: a call, and questions about it."""

from toolfleet_registry.contracts import PublishedCall
from toolfleet_workers.executors.request import Target, build_request
from toolfleet_workers.executors.status import build_question, build_status_question
from wire.stored.samples.approval_forms import CALL
from wire.stored.samples.job_forms import AT, PLAIN_ADA

_TARGET = Target.of("http://owls.test/execute", {})
PLAIN = PublishedCall(
    call_id="call-1",
    tool_name="nest.echo",
    arguments={"text": "tu-whit ✓", "nothing": None},
    user_id=None,
    caller=PLAIN_ADA,
    effect="read",
    limit_seconds=30,
    published_at=AT,
    deadline_at=AT + 60,
)


def questions() -> dict[str, str]:
    """Each body by a name; the filled ones have everything that a module can be told."""
    made = {
        "execute": build_request(PLAIN, _TARGET, seconds=30),
        "execute filled": build_request(CALL, _TARGET, seconds=30),
        "reconcile": build_question(PLAIN, _TARGET, seconds=5),
        "reconcile filled": build_question(CALL, _TARGET, seconds=5),
        "status": build_status_question(PLAIN, _TARGET, "egg-1", seconds=5),
        "status filled": build_status_question(CALL, _TARGET, "egg-1", seconds=5),
        "status cancelled": build_status_question(CALL, _TARGET, "egg-1", seconds=5, cancel=True),
    }
    return {name: request.body.decode() for name, request in made.items()}
