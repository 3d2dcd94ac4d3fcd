"""Asks RabbitMQ whether its queues are of the fleet's kind, and how long it lets a worker hold a message."""

import asyncio
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolfleet_cli.console.output import shown_url
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, remark, warning
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings

_ASK_SECONDS = 5.0
_TIMEOUT = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
_MEND = "consumer_timeout = {} in rabbitmq.conf, then restart RabbitMQ"


@dataclass(frozen=True, slots=True)
class RabbitCheck:
    """Checks RabbitMQ; with Redis as the broker there is nothing to ask."""

    name: str = "rabbitmq"
    asks_redis: bool = False
    seconds: float = 20.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        from toolfleet_tasks.aio.abandoned_thread import in_abandoned_thread

        settings = patient.settings
        if settings.broker is None or is_redis_url(settings.broker):
            return CheckResult()
        shown = shown_url(settings.broker)
        try:
            kinds = await in_abandoned_thread(lambda: _foreign_queues(settings), seconds=2 * _ASK_SECONDS)
        except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything
            text = f"The broker at {shown} does not answer: {exc or 'no answer in time'}."
            mend = "Start RabbitMQ, or correct TOOLFLEET_BROKER_URL."
            return CheckResult((error(text, "No call can be published or begun.", mend),))
        milliseconds = await _consumer_timeout()
        needed = int((settings.max_timeout + HARD_LIMIT_MARGIN) * 1000)
        facts = {"foreign_queues": kinds, "consumer_timeout_ms": milliseconds}
        return CheckResult((*_of_queues(kinds), *_of_timeout(milliseconds, needed)), facts)


def _of_queues(kinds: dict[str, str]) -> Iterable[Diagnosis]:
    for queue, reason in kinds.items():
        yield error(
            f"The queue {queue} is of another kind than the fleet's: {reason}.",
            "Workers cannot consume it: they end when they start.",
            f"Empty it, end all workers, then: rabbitmqctl delete_queue {queue}",
        )


def _of_timeout(milliseconds: int | None, needed: int) -> Iterable[Diagnosis]:
    if milliseconds is None:
        yield remark(
            "RabbitMQ's `consumer_timeout` cannot be asked from here.",
            f"It must exceed the longest call ({needed} ms): else RabbitMQ closes the worker's channel, and delivers its calls again.",
            f"Where RabbitMQ runs: {_TIMEOUT}",
        )
    elif milliseconds < needed:
        text = f"RabbitMQ lets a worker hold a message for {milliseconds} ms, and a call may take {needed} ms."
        why = "It closes the worker's channel then, and delivers all of its calls again."
        yield warning(text, why, f"{_MEND.format(needed)}; or lower TOOLFLEET_MAX_TIMEOUT")


def _foreign_queues(settings: Settings) -> dict[str, str]:
    """The fleet's queues that exist with other arguments than the fleet declares them with, and what RabbitMQ says of each."""
    from amqp.exceptions import NotFound, PreconditionFailed

    from toolfleet_tasks.app import make_app
    from toolfleet_tasks.broker import make_queue
    from toolfleet_tasks.queues import queues_of

    found, app = dict[str, str](), make_app(settings, stores_results=False)
    try:
        with app.connection_for_read(connect_timeout=_ASK_SECONDS) as connection:
            for name in queues_of("all", settings):
                try:
                    channel: Any = connection.channel()
                    make_queue(name)(channel).queue_declare(passive=True)
                    make_queue(name)(channel).queue_declare()
                    channel.close()
                except NotFound:
                    continue  # the first worker makes it
                except PreconditionFailed as exc:
                    found[name] = str(exc.reply_text)
    finally:
        app.close()
    return found


async def _consumer_timeout() -> int | None:
    """Return the time-out in milliseconds, if RabbitMQ's own tool is on this machine and answers."""
    tool = shutil.which("rabbitmqctl")
    if tool is None:
        return None
    command = [tool, "eval", "application:get_env(rabbit, consumer_timeout)."]
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
    except OSError:
        return None
    found = re.search(rb"\{ok,\s*(\d+)\}", said)
    return None if found is None else int(found[1])
