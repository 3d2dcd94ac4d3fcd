"""Writes a call's place in Celery's canvas into its message: what follows the call, and the group that it belongs to.

Nearly every call stands by itself, and its message says so in words that never change.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FOLLOWERS = ("callbacks", "errbacks", "chain", "chord")
"""Under which names a message says, in its body, what follows its call. They are Celery's."""

NOTHING_FOLLOWS = ', {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
"""How the body of a call by itself ends, behind its arguments."""


@dataclass(frozen=True, slots=True)
class Links:
    """A call's place in Celery's canvas: what follows it, as Celery's messages say it, and the group that it belongs to."""

    after: Mapping[str, Any]
    group: str | None
    group_index: int | None
    root_id: str
    parent_id: str | None

    def headers(self) -> list[str]:
        """The headers `group`, `group_index`, `root_id` and `parent_id`, as JSON."""
        return [json.dumps(value) for value in (self.group, self.group_index, self.root_id, self.parent_id)]

    def body_end(self) -> str:
        """Return the end of the body, after the call's arguments."""
        return f", {{}}, {json.dumps(self.after)}]"


def stands_alone(headers: Mapping[str, Any], body: object) -> bool:
    """Return whether a message's headers and body, in bytes, are those of a single call in our own form."""
    if not (isinstance(body, bytes) and body.endswith(_NOTHING_FOLLOWS)):
        return False
    return headers.get("group") is None and _FOLLOWERS.isdisjoint(headers)


_NOTHING_FOLLOWS = NOTHING_FOLLOWS.encode()
_FOLLOWERS = frozenset(FOLLOWERS)
