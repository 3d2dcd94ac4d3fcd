"""Lists all forms of stored text of which there are fixtures, and the messages that stand in their samples."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from wire.stored.samples.approval_forms import APPROVAL_FORMS
from wire.stored.samples.directory_forms import DIRECTORY_FORMS
from wire.stored.samples.forms import StoredForm
from wire.stored.samples.gateway_forms import GATEWAY_FORMS
from wire.stored.samples.job_forms import JOB_FORMS
from wire.stored.samples.note_forms import NOTE_FORMS
from wire.stored.samples.result_forms import RESULT_FORMS

FORMS: tuple[StoredForm, ...] = (
    *JOB_FORMS,
    *APPROVAL_FORMS,
    *RESULT_FORMS,
    *DIRECTORY_FORMS,
    *GATEWAY_FORMS,
    *NOTE_FORMS,
)
"""All of them."""


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
