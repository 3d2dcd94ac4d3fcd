"""Defines samples of what workers answer canaries with, and of what operators say of queues."""

from toolfleet_tasks.control.fleet_tasks import CanaryAnswer, read_answers
from toolfleet_tasks.queue_states import QueueState
from wire.stored.samples.forms import StoredForm
from wire.stored.samples.job_forms import AT


def _read(text: str) -> CanaryAnswer:
    answers = read_answers([text])
    if not answers:
        raise ValueError("it is no answer")
    return answers[0]


NOTE_FORMS: tuple[StoredForm, ...] = (
    StoredForm(
        "canary answer",
        {
            "plain": CanaryAnswer(worker="host:7", version=3, taken_at=AT, answered_at=AT + 0.5),
            "filled": CanaryAnswer(
                worker="host:7",
                version=3,
                release="0.9.0",
                taken_at=AT,
                answered_at=AT + 0.5,
                health="ok",
                health_seconds=0.25,
                clock_lead=-0.5,
                artifacts="owl",
            ),
        },
        CanaryAnswer.model_dump_json,
        _read,
        "ignored",
    ),
    StoredForm(
        "queue state",
        {
            "plain": QueueState(state="paused", since=AT),
            "filled": QueueState(state="draining", since=AT, by="ada", reason='the "mail" server is moved'),
        },
        QueueState.model_dump_json,
        QueueState.model_validate_json,
        "ignored",
    ),
)
