"""Reads what lies in a queue as the message of a task, and says why it is none."""

import math
from typing import Any

from pydantic_core import from_json

from toolfleet_tasks.messages.deaths import DIED
from toolfleet_tasks.messages.envelope import BEGIN

Message = dict[str, Any]

_NUMBERS = (int, float)  # `int | float` would be made anew with each message


def read_message(item: bytes, queue: str, tag: str) -> Message:
    """A task's message as kombu takes it, under the worker's own `tag`. Raises `ValueError` for anything else."""
    try:
        # Not kombu's decoder, which looks for objects in every dictionary: an envelope has none, and a good part of a
        # call's time went there. It shares the names in them, with which thousands of calls wait.
        message = from_json(item)
    except ValueError as exc:
        raise ValueError(f"not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise ValueError("not a message")  # noqa: TRY004 - one kind of error, whatever lies in a queue
    message.pop(BEGIN, None)
    headers, properties = message.get("headers"), message.get("properties")
    if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(message.get("body"), str)):
        raise ValueError("not a message: headers, properties or body are missing")  # noqa: TRY004 - as above
    if not (isinstance(headers.get("task"), str) and isinstance(headers.get("id"), str)):
        raise ValueError("not a task: its name or its id is missing")  # noqa: TRY004 - as above
    if not _are_limits(headers.get("timelimit")):
        raise ValueError("not a task: its limits are not two numbers of seconds")
    info = properties.get("delivery_info")
    if not isinstance(info, dict):
        info = properties["delivery_info"] = {}
    info.setdefault("exchange", "")
    info.setdefault("routing_key", queue)
    if message.pop("redelivered", False):
        headers["redelivered"] = info["redelivered"] = True
    died = message.pop("died", None)
    if died is not None:
        headers[DIED] = died
    properties["delivery_tag"] = tag
    return message


def _are_limits(limits: object) -> bool:
    """Whether Celery can begin with them: what fails only there would cost a slot for good."""
    if limits is None:
        return True
    if not (isinstance(limits, list) and len(limits) == 2):  # noqa: PLR2004 - hard and soft
        return False
    return _is_limit(limits[0]) and _is_limit(limits[1])


def _is_limit(limit: object) -> bool:
    return limit is None or (isinstance(limit, _NUMBERS) and 0 <= limit < math.inf)
