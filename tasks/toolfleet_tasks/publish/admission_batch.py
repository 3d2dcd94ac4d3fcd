"""Sends calls that are admitted in one tick of the loop as one script, where nothing is to be asked of any of them alone."""

import asyncio
import math
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from toolfleet_registry.redis.script import Parameters
from toolfleet_tasks.lua.admission import ADMIT, ADMIT_MANY
from toolfleet_tasks.redis.connection import Part, PipelinedConnection
from toolfleet_tasks.redis.script_runner import is_unknown_script

_MOST = 64  # calls: Redis does nothing else for that long, some 0.3 ms

_LARGEST = 65_536  # characters of a message: larger ones would add up to what Redis takes for too large a command

_Command = tuple[Part, ...]
_KEYS = 8  # of a call without an idempotency key


class AdmissionBatcher:
    """Collects the calls of one tick, by queue and limits. Belongs to the connection's event loop.

    A batch admits all of its calls, or none: then each is sent alone, unless its caller has gone.
    """

    def __init__(self, connection: PipelinedConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._open: dict[_Command, _Batch] = {}

    def send(self, parameters: _Command) -> "asyncio.Future[Any]":
        """Send the parameters of `ADMIT`; the future brings its reply, or raises as that of `PipelinedConnection.send` does."""
        shared = _shared_of(parameters)
        if shared is None:
            return self._send_alone(parameters)
        batch = self._open.get(shared)
        if batch is None or len(batch) == _MOST:
            batch = self._open[shared] = _Batch()
            sent = self._connection.send_built(partial(self._close, shared, batch))
            sent.add_done_callback(partial(self._answer, shared, batch))
        reply: asyncio.Future[Any] = self._loop.create_future()
        batch.append((parameters, reply))
        return reply

    def _close(self, shared: _Command, batch: "_Batch") -> _Command:
        """Return the command, as it leaves.

        A caller that has gone meanwhile may be in it, as one whose command had just left.
        """
        if self._open.get(shared) is batch:
            del self._open[shared]
        if len(batch) == 1:
            return ("EVALSHA", ADMIT.digest, *batch[0][0])
        return ("EVALSHA", ADMIT_MANY.digest, *_together(shared, batch))

    def _answer(self, shared: _Command, batch: "_Batch", sent: "asyncio.Future[Any]") -> None:
        if self._open.get(shared) is batch:  # the connection was lost before it left
            del self._open[shared]
        error = sent.exception()
        if len(batch) > 1 and isinstance(error, ResponseError):
            again = _Batch(each for each in batch if not each[1].done())
            if is_unknown_script(error) and len(again) > 1:
                whole = self._connection.send("EVAL", ADMIT_MANY.text, *_together(shared, again))
                whole.add_done_callback(partial(self._answer, shared, again))
            else:
                self._send_each(again)
        elif error is None and len(batch) > 1 and sent.result() is None:
            self._send_each(batch)
        else:
            for _, reply in batch:
                _pass_on(reply, sent)

    def _send_each(self, batch: "_Batch") -> None:
        """Send each call alone after a refused batch, which did nothing; calls of callers that have gone are left out."""
        for parameters, reply in batch:
            if not reply.done():
                self._send_alone(parameters).add_done_callback(partial(_pass_on, reply))

    def _send_alone(self, parameters: _Command) -> "asyncio.Future[Any]":
        return self._connection.send("EVALSHA", ADMIT.digest, *parameters)


class _Batch(list[tuple[_Command, "asyncio.Future[Any]"]]):
    """The parameters of `ADMIT` of each call, and who waits for its reply."""


class _Asked(NamedTuple):
    """The parameters of `ADMIT` for a call without an idempotency key, in their order."""

    number: Part
    queue: Part
    notify_key: Part
    breaker: Part
    caller_limit: Part
    stored: Part
    slots: Part
    record: Part
    queue_states: Part
    call_id: Part
    deadline: Part
    message: Part
    limit: Part
    bound: Part
    keep_ms: Part
    intent_seconds: Part
    intention: Part
    backlog_bytes: Part
    stored_bytes_most: Part
    marks: Part


def _shared_of(parameters: _Command) -> _Command | None:
    """Return the parameters that calls of one batch must share; `None` for one that must be judged alone."""
    if parameters[0] != _KEYS:
        return None
    asked = _Asked._make(parameters)
    is_fitting = 0 < len(str(asked.message)) <= _LARGEST
    if not is_fitting or asked.keep_ms or asked.marks or int(asked.bound) <= 0:
        return None
    return (
        asked.queue,
        asked.notify_key,
        asked.breaker,
        asked.queue_states,
        asked.limit,
        asked.bound,
        asked.backlog_bytes,
    )


def _together(shared: _Command, batch: _Batch) -> Parameters:
    queue, notify_key, breaker, queue_states, limit, bound, backlog_bytes = shared
    calls = [_Asked._make(parameters) for parameters, _ in batch]
    return ADMIT_MANY.parameters(
        queue=queue,
        notify_key=notify_key,
        breaker=breaker,
        queue_states=queue_states,
        known=[(call.record, call.caller_limit, call.stored) for call in calls],
        limit=limit,
        bound=bound,
        backlog_bytes=backlog_bytes,
        calls=[(call.call_id, math.ceil(float(call.deadline)), call.message) for call in calls],
    )


def _pass_on(reply: "asyncio.Future[Any]", sent: "asyncio.Future[Any]") -> None:
    error = sent.exception()
    if reply.done():
        return
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(sent.result())
