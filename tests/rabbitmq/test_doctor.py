"""The doctor at a fleet whose broker is RabbitMQ: queues of another kind, how long a message may be held, and no answer."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from support.fleet import TestBed
from support.servers.rabbitmq import RabbitMq
from toolfleet_cli.doctor.check import Diagnosis, Patient, Severity
from toolfleet_cli.doctor.servers import check_rabbitmq
from toolfleet_cli.local.redis_server import LOOPBACK, free_port
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings

QUEUE = "tools.strange"


@pytest.fixture
def settings(bed: TestBed) -> Settings:
    """Those of a fleet at that broker whose only module nobody else has."""
    return bed.settings.model_copy(update={"module_services": {"strange": "http://127.0.0.1:1"}})


@pytest.fixture
def channel(broker: RabbitMq) -> Iterator[amqp.Channel]:
    """A channel at whose end the module's queue is gone."""
    with amqp.Connection(f"{LOOPBACK}:{broker.port}", userid="guest", password="guest") as connection:
        channel = connection.channel()
        yield channel
        channel.queue_delete(QUEUE)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `rabbitmqctl` prints, in a file: that of the system asks the system's own server."""
    tool, text = tmp_path / "rabbitmqctl", tmp_path / "said"
    text.write_text("{ok,1800000000}\n")
    tool.write_text(f"#!/bin/sh\nexec cat {text}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", functools.partial(shutil.which, path=str(tmp_path)))
    return text


async def found(settings: Settings) -> list[Diagnosis]:
    """What the doctor finds at the broker."""
    return list((await check_rabbitmq(Patient(settings, environ={}))).findings)


@pytest.mark.usefixtures("said")
async def test_a_queue_of_another_kind_is_found(settings: Settings, channel: amqp.Channel) -> None:
    """While there is none the first worker makes it; one that somebody else has made is an error with the command that mends it."""
    assert await found(settings) == []

    channel.queue_declare(QUEUE, durable=False, auto_delete=False)
    (finding,) = await found(settings)
    assert finding.severity is Severity.ERROR
    assert f"The queue {QUEUE} is of another kind" in finding.what
    assert finding.fix.endswith(f"rabbitmqctl delete_queue {QUEUE}")


async def test_a_time_that_is_too_short_for_a_call_is_found(settings: Settings, said: Path) -> None:
    """RabbitMQ must let a worker hold a message for longer than the longest call; what it does not say is a note."""
    needed = int((settings.max_timeout + HARD_LIMIT_MARGIN) * 1000)
    said.write_text(f"{{ok,{needed - 1}}}\n")
    (short,) = await found(settings)
    said.write_text("Error: unable to connect\n")
    (unknown,) = await found(settings)

    assert (short.severity, unknown.severity) == (Severity.WARNING, Severity.NOTE)
    assert short.fix.startswith(f"consumer_timeout = {needed} in rabbitmq.conf")


async def test_a_broker_that_does_not_answer_is_an_error(settings: Settings) -> None:
    """It is named without its password."""
    url = f"amqp://guest:s3cret@{LOOPBACK}:{free_port()}//"
    (finding,) = await found(settings.model_copy(update={"broker_url": url}))

    assert finding.severity is Severity.ERROR
    assert "does not answer" in finding.what
    assert "s3cret" not in finding.what
