"""Asks an address of the public internet whether work is over: a poll of the tool of the module `research` that fetches it.

No worker fetches anything: that module decides which addresses may be reached, and how much is read.
"""

from typing import Any

from toolfleet_registry.contracts.jobs import Poll
from toolfleet_registry.redis.urls import is_http_url

CHECK_URL = "research.check_url"
"""The tool that fetches an address and says its status and a field of what was there."""

_LONGEST_URL = 2_000  # characters
_STATUSES = range(200, 600)
_MOST_STATUSES = 20


def url_poll(
    url: str, *, status: int | list[int] = 200, field: str | None = None, value: Any = None, **poll: Any
) -> Poll:
    """Make a poll that is over when `url` answers with this status (or one of these) and, if it is given, `value` at `field`.

    `field` is a path in the answer's JSON, as `a.b.0`; `value` a text, a number, a truth value, or a list of which one must
    be there. `poll` are other fields of `Poll`, such as `interval_seconds`. Raises `ValueError`, in one sentence.
    """
    if len(url) > _LONGEST_URL or not is_http_url(url):
        raise ValueError(f"`poll_url` must be an http or https address of at most {_LONGEST_URL:,} characters.")
    statuses = status if isinstance(status, list) else [status]
    if not 0 < len(statuses) <= _MOST_STATUSES or any(one not in _STATUSES for one in statuses):
        raise ValueError("The expected status is a number from 200 to 599, or a list of 1 to 20 of these.")
    if (field is None) != (value is None):
        raise ValueError("The expected field and the expected value go together.")
    arguments, until = {"url": url}, dict[str, Any](status=statuses)
    if field is not None:
        arguments, until = {**arguments, "field": field}, {**until, "value": value}
    return Poll(tool_name=CHECK_URL, arguments=arguments, until=until, failed_when=None, **poll)
