"""Stores results as Celery's Redis backend does, but in a call over the worker's connection: one command a result, and no waiting.

The values and keys are Celery's own. Outside of a call (clients, beat, Flower) it is the stock backend. In one it knows
no connection errors: the call waits until Redis has answered, however long that takes, and is acked after that.
"""

import asyncio
import functools
import re
import threading
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import EncodeError
from kombu.utils.json import JSONEncoder
from kombu.utils.objects import cached_property
from redis.exceptions import ResponseError

from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.greenlet_bridge import Bridge, await_, in_bridge, retry_blocking
from toolfleet_tasks.messages.signing import Signatures
from toolfleet_tasks.redis_connection import (
    Part,
    PipelinedConnection,
    RedisConnectionClosed,
    RedisConnectionLost,
    write_durably,
)
from toolfleet_tasks.results.verifier import ANNOUNCED_AT_MOST, STORED, signed_part
from toolfleet_tasks.transport import scripts
from toolfleet_tasks.worker_runtime import WorkerRuntime

log = get_logger(__name__)


_encode = JSONEncoder().encode
_CLAIM_PAUSE_SECONDS = 0.5  # a chord's body is called in far less
_STATUS, _STATUS_ENDS = re.compile(r'\{"status": "([A-Z]+)"'), 40


class ResultRefused(EncodeError):
    """Redis refuses to store a result, for good. Celery then stores this as the call's failure."""


class _OverConnection:
    """A mixin of both backends. The app has `settings`; raises `ImproperlyConfigured` for other formats.

    Where the fleet signs, the end of a call has its signature in addition to Celery's own fields: their readers are unaffected.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.serializer != "json" or self.compression or not (self.expires and self.failure_expires):
            # The script tells a success by its first bytes, and has every result expire.
            raise ImproperlyConfigured("The fleet's backend stores results as plain JSON, and all of them expire.")
        self._is_extended = bool(self.app.conf.find_value_for_key("extended", "result"))

    def encode(self: Any, data: Any) -> Any:
        """As the stock backend, with the signature."""
        return super().encode(self._signed(data))  # type: ignore[misc] # Celery's backend

    def store_result(
        self: Any,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Store a state, unless there is a success. In a call it raises `EncodeError`, and no connection errors.

        A call that is refused in a timer of Celery's, before it has started, cannot wait: that is written later.
        """
        if getattr(request, "is_stored", False) and state == states.SUCCESS:  # by the ledger, with the call's record
            return result
        here = worker_runtime.current()
        if here is None or here.thread_id != threading.get_ident():
            return super().store_result(task_id, result, state, traceback, request=request, **kwargs)  # type: ignore[misc] # Celery's backend
        result = self.encode_result(result, state)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        write = functools.partial(self._write, self._connection_of(here), {**meta, "task_id": task_id})
        if in_bridge():
            write()
        else:
            here.later(Bridge(write))
        return result

    def get(self: Any, key: bytes) -> bytes | None:
        """As the stock backend; in a call it waits for Redis like `store_result`."""
        here = worker_runtime.current() if in_bridge() else None
        if here is None:
            stock: bytes | None = super().get(key)  # type: ignore[misc] # as above
            return stock
        found: bytes | None = await_(self._connection_of(here).execute("GET", key))
        return found

    def on_task_call(self: Any, producer: Any, task_id: str) -> None:
        """Do nothing: the stock backend listens to every task that is published, wanted or not."""

    def on_chord_part_return(self: Any, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part as the stock backend does; in a call this is done in a thread, until Redis has it.

        Counting a part twice counts once.

        The worker that completes the count claims the chord for some seconds, to call its body, and may die then: a
        second one waits until it is done, or does it.
        """
        count = functools.partial(super().on_chord_part_return, request, state, result, **kwargs)  # type: ignore[misc] # as above
        if not in_bridge():
            count()
            return
        retry_blocking(count)
        while request.group and retry_blocking(functools.partial(self._is_claimed, request.group)):
            await_(asyncio.sleep(_CLAIM_PAUSE_SECONDS))
            retry_blocking(count)

    def _is_claimed(self: Any, group_id: str) -> bool:
        """Return whether a worker is about to call the chord's body, or was."""
        claim, size = self.client.mget(self.get_key_for_group(group_id, part) for part in (".c", ".s"))
        return size is not None and claim not in {None, b"done"}

    def get_state(self: Any, task_id: str) -> str:
        """Return the state as the stock backend does, in a call without the result: remote control asks for it, whatever its size."""
        here = worker_runtime.current() if in_bridge() else None
        if here is None:
            stock: str = super().get_state(task_id)  # type: ignore[misc] # as above
            return stock
        start: bytes = await_(
            self._connection_of(here).execute("GETRANGE", self.get_key_for_task(task_id), 0, _STATUS_ENDS)
        )
        found = _STATUS.match(start.decode(errors="replace"))
        return found[1] if found else states.PENDING

    def _get_result_meta(
        self: Any, result: Any, state: str, traceback: str | None, request: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """As the stock backend, which spends most of its time here on looking up a setting and a time zone."""
        if self._is_extended or kwargs:
            stock: dict[str, Any] = super()._get_result_meta(result, state, traceback, request, **kwargs)  # type: ignore[misc] # as above
            return stock
        meta = {
            "status": state,  # first: the script looks there
            "result": result,
            "traceback": traceback,
            "children": self.current_task_children(request),
            "date_done": machine_clock.utc_now().isoformat() if state in states.READY_STATES else None,
        }
        if request and (group := getattr(request, "group", None)):
            meta["group_id"] = group
        if request and (parent := getattr(request, "parent_id", None)):
            meta["parent_id"] = parent
        return meta

    def _signed(self: Any, data: Any) -> Any:
        is_end = isinstance(data, dict) and "task_id" in data and data.get("status") in states.READY_STATES
        if self.app.settings.signing_key is None or not is_end:
            return data
        subject, text = signed_part(data)
        return {**data, "signature": self._signatures[subject].of(data["task_id"], text)}

    @cached_property
    def _signatures(self: Any) -> dict[str, Signatures]:
        return {subject: Signatures(self.app.settings, subject) for subject in ("result", "failure")}

    def _connection_of(self: Any, here: WorkerRuntime) -> PipelinedConnection:
        settings = self.app.settings
        return here.to(settings.redis_url, master=settings.sentinel_master)

    def _write(self: Any, connection: PipelinedConnection, meta: dict[str, Any]) -> None:
        value, state = _encoded(self._signed(meta)), meta["status"]
        try:
            _write_down(connection, self._command(meta, value), size=len(value))
        except RedisConnectionClosed:  # the worker ends; the message is not acked
            raise
        except (ResponseError, RedisConnectionLost) as exc:
            reason = f"Redis refuses to store the result ({len(value)} bytes): {exc}"
            log.error("result_refused", call_id=meta["task_id"], status=state, bytes=len(value), error=str(exc))  # noqa: TRY400 - the error says all
            if state in {states.STARTED, states.SUCCESS}:
                raise ResultRefused(reason) from exc
            if state in states.READY_STATES:
                self._write_refusal(connection, meta, ResultRefused(reason))

    def _write_refusal(
        self: Any, connection: PipelinedConnection, meta: dict[str, Any], refusal: ResultRefused
    ) -> None:
        """Have the call end with something, where its failure cannot be stored."""
        failure = self.encode_result(refusal, states.FAILURE)
        short = {**meta, "status": states.FAILURE, "result": failure, "traceback": None}
        value = _encoded(self._signed(short))
        try:
            _write_down(connection, self._command(short, value), size=len(value))
        except (ResponseError, RedisConnectionLost) as exc:  # a foreign key of another type is there, perhaps
            log.error("result_lost", call_id=meta["task_id"], error=str(exc))  # noqa: TRY400 - as above

    def _command(self: Any, meta: dict[str, Any], value: str) -> tuple[Part, ...]:
        key: bytes = self.get_key_for_task(meta["task_id"])
        seconds: int = self.failure_expires if meta["status"] == states.FAILURE else self.expires
        call_id, announcement = meta["task_id"], _announcement(meta, value)
        names = {"record": self.app.settings.keys.call(call_id), "call_id": call_id}
        return scripts.STORE.command(result=key, **names, value=value, seconds=seconds, announcement=announcement)


class FleetBackend(_OverConnection, RedisBackend):
    """Results in one Redis."""


class FleetSentinelBackend(_OverConnection, SentinelBackend):
    """Results in the present Redis master."""


def _announcement(meta: dict[str, Any], value: str) -> str:
    if meta["status"] == states.STARTED:  # it is not waited for: a client that wants it reads it
        return ""
    return "=" if len(value) <= ANNOUNCED_AT_MOST else _encode({"status": STORED, "task_id": meta["task_id"]})


def _encoded(meta: dict[str, Any]) -> str:
    try:
        return _encode(meta)
    except Exception as exc:  # as in kombu: a value's own conversion to JSON raises anything
        raise EncodeError(f"{exc}") from exc


def _write_down(connection: PipelinedConnection, command: tuple[Part, ...], *, size: int) -> None:
    """Write as `written` does, and in the usual case with no more than one future."""
    try:
        await_(connection.send(*command))
    except (ResponseError, RedisConnectionLost):
        await_(write_durably(connection, command, size=size))
