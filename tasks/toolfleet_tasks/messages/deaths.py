"""Notes with a call's message which workers have died with it in their hands."""

import re
from collections.abc import Iterable

DIED = "toolfleet_died"
"""A header: the names of the workers that have died with the call, as `lua.queues.RESTORE` has noted them."""

_NAME = re.compile("[0-9a-f]+")


def deaths_of(request: object) -> tuple[str, ...]:
    """The workers that have died with a call, by its task's request."""
    died = getattr(request, DIED, None)
    return tuple(_NAME.findall(died)) if isinstance(died, str) else ()


def with_deaths(item: str, died: Iterable[str]) -> str:
    """A message as it is put into a queue again, of a call with which workers have died; as it is if none have."""
    names = " ".join(died)
    return f'{{"redelivered":true,"died":"{names}",{item[1:]}' if names else item
