"""Lists all forms of stored text of which there are fixtures, and the messages that stand in their samples."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from toolfleet_tasks.messages.signing import Seal
from wire.keep import MODES
from wire.stored.samples.approval_forms import APPROVAL_FORMS
from wire.stored.samples.directory_forms import DIRECTORY_FORMS
from wire.stored.samples.forms import FIXTURES, StoredForm
from wire.stored.samples.gateway_forms import GATEWAY_FORMS
from wire.stored.samples.job_forms import JOB_FORMS
from wire.stored.samples.note_forms import NOTE_FORMS
from wire.stored.samples.program_forms import PROGRAM_FORMS
from wire.stored.samples.result_forms import RESULT_FORMS

FORMS: tuple[StoredForm, ...] = (
    *JOB_FORMS,
    *PROGRAM_FORMS,
    *APPROVAL_FORMS,
    *RESULT_FORMS,
    *DIRECTORY_FORMS,
    *GATEWAY_FORMS,
    *NOTE_FORMS,
)
"""All of them."""
APART = FIXTURES / "call_apart.json"


def messages_in(value: Any) -> Iterator[BaseModel]:
    """A value and whatever messages stand in it."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from messages_in(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from messages_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from messages_in(each)


def apart(mode: str) -> dict[str, str | None]:
    """The sample calls as they are sealed with their arguments apart, in a fleet of that mode."""
    (form,) = (form for form in FORMS if form.name == "call")
    return {name: Seal(MODES[mode].get("signing_key")).seal_apart(call) for name, call in form.samples.items()}


def kept_apart() -> dict[str, dict[str, list[str]]]:
    """The fixtures of these: texts by mode, by sample, the oldest first; nothing, while there are none."""
    return json.loads(APART.read_text()) if APART.exists() else {}
