"""The server of probes by itself: whom it answers, what it asks, and that it harms nobody where it cannot listen."""

import asyncio
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from celery.beat import Scheduler
from structlog.testing import capture_logs

from toolfleet_registry.settings import Settings
from toolfleet_tasks import threaded_http
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control import beat, probe_sockets
from toolfleet_tasks.control import probes as probes_module
from toolfleet_tasks.control.beat import FleetScheduler
from toolfleet_tasks.control.probe_sockets import folder, new_socket_path, says_yes, sockets_of
from toolfleet_tasks.control.probes import Probes

AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For the folder of sockets; its path is short, as that of a socket must be."""
    with TemporaryDirectory() as place:
        monkeypatch.setenv("TMPDIR", place)
        yield Path(place)


@contextmanager
def answering(settings: Settings, fault: Callable[[], str | None] = lambda: None) -> Generator[Probes]:
    probes = Probes("fast", settings, live=fault, ready=lambda: None)
    probes.start()
    try:
        yield probes
    finally:
        probes.close()


def test_it_is_gone_when_it_has_been_closed(redis_url: str) -> None:
    """Its socket with it, so that nobody takes it for one that stands still."""
    settings = Settings(redis_url=redis_url)
    with answering(settings):
        (path,) = sockets_of("fast", settings)
        assert says_yes([path], "/readyz", seconds=5)

    assert not path.exists()
    assert not says_yes([path], "/livez", seconds=5)


def test_what_is_wrong_is_said_in_words(redis_url: str) -> None:
    """With 503; a process that is not alive is not ready either, and Redis is not asked."""
    with answering(Settings(redis_url=AWAY), lambda: "the loop has stood still for 31 s") as probes:
        for path in ("/livez", "/readyz"):
            assert probes.answer(path) == (HTTPStatus.SERVICE_UNAVAILABLE, "the loop has stood still for 31 s")
    with answering(Settings(redis_url=redis_url, broker_url="amqp://me:secret@127.0.0.1:1//")) as probes:
        assert probes.answer("/readyz") == (HTTPStatus.SERVICE_UNAVAILABLE, "the broker does not answer")
        assert probes.answer("/livez") == (HTTPStatus.OK, "ok")


def test_a_redis_that_says_nothing_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """And asked once for all who ask at the same time."""
    monkeypatch.setattr(probes_module, "_REACH_SECONDS", 0.1)
    asked = list[str]()
    reaches = probes_module._reaches

    async def counting(url: str, settings: Settings) -> bool:
        asked.append(url)
        return await reaches(url, settings)

    monkeypatch.setattr(probes_module, "_reaches", counting)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with answering(Settings(redis_url=url)) as probes:
            answers = {probes.answer("/readyz") for _ in range(5)}

    assert answers == {(HTTPStatus.SERVICE_UNAVAILABLE, "Redis does not answer")}
    assert len(asked) == 1


def test_who_says_nothing_keeps_nobody_waiting(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they are more than there are threads for: those are sent away, and in the end all are."""
    monkeypatch.setattr(threaded_http._Asked, "timeout", 0.2)
    settings = Settings(redis_url=redis_url)
    with answering(settings):
        (path,) = sockets_of("fast", settings)
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3 * threaded_http._MOST_AT_ONCE)
            ]
            for each in silent:
                each.settimeout(5)
                each.connect(str(path))
            assert [each.recv(1) for each in silent] == [b""] * len(silent)

        assert says_yes([path], "/livez", seconds=5)


def test_sockets_of_the_dead_are_removed() -> None:
    """A process that was killed leaves one behind; the next to start sees to it."""
    settings = Settings(redis_url=AWAY)
    folder().mkdir(mode=0o700)
    dead, alive = (new_socket_path(role, settings) for role in ("fast", "beat"))
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as other:
        gone.bind(str(dead))
        other.bind(str(alive))
        other.listen()
        with answering(settings):
            assert (dead.exists(), alive.exists()) == (False, True)
            assert len(sockets_of("fast", settings)) == 1


@pytest.mark.parametrize("is_link", [True, False], ids=["a link", "open to others"])
def test_a_folder_that_others_may_write_to_is_not_used(place: Path, is_link: bool) -> None:
    """In `/tmp` anybody may have made it before: neither server nor check believe in it, and the process works."""
    settings = Settings(redis_url=AWAY)
    if is_link:
        (place / "theirs").mkdir(mode=0o700)
        folder().symlink_to(place / "theirs")
    else:
        folder().mkdir()
        folder().chmod(0o777)
    with capture_logs() as logs, answering(settings):
        new_socket_path("fast", settings).touch()
        assert sockets_of("fast", settings) == []

    assert [entry["event"] for entry in logs] == ["probes_not_answered"]


def test_a_place_with_a_long_name_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path has a hundred characters or so."""
    monkeypatch.setattr(probe_sockets, "_COMMON", str(place))
    monkeypatch.setenv("TMPDIR", str(place / ("x" * 80)))

    assert folder().parent == place


def test_a_port_that_is_taken_is_said(redis_url: str) -> None:
    """An error in the log, and the process works: a second one on the machine has the same settings, say."""
    with socket.create_server(("127.0.0.1", 0)) as other, capture_logs() as logs:
        port = other.getsockname()[1]
        settings = Settings(redis_url=redis_url, probe_port=port)
        with answering(settings):
            assert len(sockets_of("fast", settings)) == 1

    (entry,) = logs
    assert (entry["event"], entry["log_level"], entry["place"]) == ("probes_not_answered", "error", f"127.0.0.1:{port}")


def test_a_beat_is_alive_while_it_rests_or_waits_for_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more when a tick takes too long for any other reason."""
    app = make_app(Settings(redis_url=AWAY), stores_results=False)
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now, wall=lambda: now)
    monkeypatch.setattr(beat, "machine_clock", clock)
    scheduler: Any = FleetScheduler(app, lazy=True)
    monkeypatch.setattr(Scheduler, "tick", lambda _: 300.0)
    waited = list[tuple[str | None, str | None]]()
    connect = lambda *_, **__: waited.append((scheduler.stuck(), scheduler.unready()))  # noqa: E731 - in the place of a method
    monkeypatch.setattr(scheduler.connection, "ensure_connection", connect)

    assert scheduler.tick() == 300
    now += 329
    assert scheduler.stuck() is None
    now += 2
    assert scheduler.stuck() == "beat's loop has stood still for 31 s"
    scheduler._ensure_connected()
    assert waited == [(None, "beat waits for its broker")]
    assert scheduler.unready() is None
    app.close()


async def test_a_probe_may_be_asked_beside_a_running_loop(redis_url: str) -> None:
    """That of the process is not the one in which Redis is asked."""
    with answering(Settings(redis_url=redis_url)) as probes:
        assert await asyncio.to_thread(probes.answer, "/readyz") == (HTTPStatus.OK, "ok")
