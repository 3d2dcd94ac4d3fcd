"""What an orchestrator asks a worker and beat: whether they live, and whether they are ready."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from support.command import run
from support.fleet import TestBed, program
from support.module_server import ModuleServer
from support.servers.plain_http import PLAIN
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import WorkerProcess
from support.workers.fast_worker import fast_fleet
from toolfleet_cli.check import is_well
from toolfleet_cli.local.environment import beat_command, environment_of
from toolfleet_cli.local.redis_server import held_port
from toolfleet_tasks.control.probes import STILL_SECONDS

STILL = {
    "worker": "toolfleet_workers.pool.bootsteps.STILL_SECONDS",
    "beat": "toolfleet_tasks.control.beat.STILL_SECONDS",
}
SOON_SECONDS = 12  # instead of those: what waits for a silent Redis gives up within them, too
WITHIN = 5.0  # seconds: for a check of readiness
ROLES = ("worker", "beat")


@dataclass
class Stage:
    """A worker and beat, each with its port for probes, on a Redis to which things may happen."""

    bed: TestBed
    redis: FaultyRedis
    processes: dict[str, WorkerProcess]
    ports: dict[str, int]

    def probe(self, role: str, path: str) -> tuple[int, str]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.ports[role]}{path}", verify=PLAIN)
        except httpx.ConnectError:  # it does not listen yet
            return 0, ""
        return answer.status_code, answer.text.strip()

    def is_well(self, role: str, *, live: bool) -> bool:
        """As the command finds it."""
        return is_well(role, self.bed.settings, live=live)

    def check(self, *words: str) -> object:
        """The exit code of the command, which says nothing."""
        ended = run(*words, "--check", env=environment_of(self.bed.settings))
        assert (ended.out, ended.err) == ("", "")
        return ended.code

    def wait_until_it_says(self, role: str, status: int, *texts: str) -> None:
        """Until it says so of its readiness; what it knows may be a second old."""
        said = {(status, text) for text in texts}
        wait_until_sync(lambda: self.probe(role, "/readyz") in said, f"{role} says one of {said}")

    def tried_until(self, role: str) -> datetime:
        """When it has last said that Redis is away."""
        said = re.findall(
            r"^(\S+Z).*(?:redis_line_away|beat_waits_for_broker|tick_not_sent)",
            self.processes[role].said(),
            re.MULTILINE,
        )
        return datetime.fromisoformat(said[-1]) if said else datetime.min.replace(tzinfo=UTC)

    def folder(self) -> Path:
        (folder,) = Path(os.environ["TMPDIR"]).iterdir()
        return folder


@contextmanager
def frozen(process: WorkerProcess) -> Generator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def stage(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with (
        faulty_redis(tmp_path_factory.mktemp("redis")) as redis,
        on_stage(redis, owls, tmp_path_factory.mktemp("stage")) as stage,
    ):
        yield stage


@contextmanager
def on_stage(
    redis: FaultyRedis, owls: ModuleServer, folder: Path, *, still_seconds: float = STILL_SECONDS
) -> Generator[Stage]:
    with ExitStack() as stack:
        (folder / "logs").mkdir()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        place = stack.enter_context(TemporaryDirectory())  # the path of a socket must be short
        patch.setenv("TMPDIR", place)
        bed = TestBed(redis.url, (owls,), folder / "logs")
        ports = {role: stack.enter_context(held_port(0)) for role in ("worker", "beat")}
        settings = bed.settings.model_copy(update={"probe_port": ports["beat"]})
        processes = {
            "worker": stack.enter_context(
                bed.worker(probe_port=ports["worker"], constants={STILL["worker"]: still_seconds})
            ),
            "beat": stack.enter_context(
                program(
                    bed,
                    beat_command(),
                    "beat",
                    ready="beat: Starting",
                    settings=settings,
                    constants={STILL["beat"]: still_seconds},
                )
            ),
        }
        stage = Stage(bed, redis, processes, ports)
        for role in ROLES:
            stage.wait_until_it_says(role, 200, "ok")
        yield stage


@pytest.mark.usual
@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_works_is_alive_and_ready(stage: Stage, role: str) -> None:
    """At its port, and by the command; nothing else is to be had there."""
    assert [stage.probe(role, path) for path in ("/livez", "/readyz?verbose=1")] == [(200, "ok")] * 2
    assert [stage.is_well(role, live=live) for live in (False, True)] == [True, True]
    assert stage.probe(role, "/metrics")[0] == 404
    assert httpx.post(f"http://127.0.0.1:{stage.ports[role]}/livez", verify=PLAIN).status_code == 405


def test_a_check_is_of_one_role_of_one_fleet(stage: Stage) -> None:
    """Another lane, or another fleet of the same user on the same machine, is not answered for."""
    other = stage.bed.settings.model_copy(update={"key_prefix": "other:"})

    lanes = {lane: stage.bed.settings.model_copy(update={"lane": lane}) for lane in ("fast", "all")}

    assert {lane: is_well("worker", settings, live=True) for lane, settings in lanes.items()} == {
        "fast": False,
        "all": True,
    }
    assert not any(is_well(role, other, live=True) for role in ROLES)


def test_a_frozen_redis_makes_nobody_die(stage: Stage) -> None:
    """Both are alive and not ready, and say so: who restarted a worker then would tear its calls apart."""

    def ask(role: str) -> tuple[object, ...]:
        stage.wait_until_it_says(role, 503, "Redis does not answer", "beat waits for its broker")
        return (stage.probe(role, "/livez"), stage.is_well(role, live=True), stage.check(role))

    with stage.redis.frozen(), ThreadPoolExecutor() as threads:
        assert list(threads.map(ask, ROLES)) == [((200, "ok"), True, 1)] * 2
    for role in ROLES:
        stage.wait_until_it_says(role, 200, "ok")


@pytest.mark.slow
def test_a_worker_whose_loop_is_blocked_is_not_alive(tmp_path: Path) -> None:
    """By code of a call, say: it says so while that lasts, for it answers from a thread."""
    with held_port(0) as port, fast_fleet(tmp_path, {"TOOLFLEET_PROBE_PORT": str(port)}) as fleet:

        def answer() -> tuple[int, str]:
            said = httpx.get(f"http://127.0.0.1:{port}/livez", verify=PLAIN)
            return said.status_code, said.text

        assert answer() == (200, "ok\n")
        fleet.calls.send("pool.block", STILL_SECONDS + 5)
        wait_until_sync(lambda: answer()[0] == 503, "it is not alive", seconds=STILL_SECONDS + 20)
        assert answer()[1].startswith("the worker's loop has stood still for 3")
        wait_until_sync(lambda: answer()[0] == 200, "it is alive again")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_who_waits_for_redis_is_alive(owls: ModuleServer, tmp_path: Path) -> None:
    """However long it is silent or down; when it is back both are ready."""
    with (
        faulty_redis(tmp_path / "redis") as redis,
        on_stage(redis, owls, tmp_path, still_seconds=SOON_SECONDS) as stage,
    ):
        for away in (redis.frozen, redis.restarted):
            with away():
                long = datetime.now(UTC) + timedelta(seconds=SOON_SECONDS + 3)

                def have_waited() -> bool:
                    assert [stage.probe(role, "/livez") for role in ROLES] == [(200, "ok")] * 2
                    assert [stage.is_well(role, live=True) for role in ROLES] == [True, True]
                    return all(stage.tried_until(role) > long for role in ROLES)  # noqa: B023 - of this round

                wait_until_sync(have_waited, "both have waited for long", seconds=3 * PATIENCE_SECONDS, step=0.2)
                began_at = time.monotonic()
                assert [stage.check(role) for role in ROLES] == [1, 1]
                assert time.monotonic() - began_at < len(ROLES) * WITHIN
                assert {stage.probe(role, "/readyz")[0] for role in ROLES} == {503}
            for role in ROLES:
                stage.wait_until_it_says(role, 200, "ok")


@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_stands_still_is_not_well(stage: Stage, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not answer, and the check waits no longer than it may."""
    monkeypatch.setattr("toolfleet_cli.check._ANSWER_SECONDS", 0.2)  # nobody will, however long we wait
    with frozen(stage.processes[role]):
        assert [stage.is_well(role, live=live) for live in (False, True)] == [False, False]


def test_a_check_is_cheap(stage: Stage) -> None:
    """It loads neither Celery nor Redis nor the other commands."""
    code = "import sys; sys.argv[1:] = ['beat', '--check']; import toolfleet_cli as c; c.main()"
    env = {**os.environ, **environment_of(stage.bed.settings)}
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}

    assert ended.returncode == 0
    assert loaded.isdisjoint({"celery", "kombu", "redis", "typer", "rich", "structlog", "httpx"})


def test_only_its_user_reaches_a_process(stage: Stage) -> None:
    """By its socket, whose folder is private; over TCP nothing listens unless a port was set."""
    listening = {
        connection.laddr.port
        for connection in psutil.Process(stage.processes["worker"].process.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }

    assert stage.folder().stat().st_mode & 0o777 == 0o700
    assert len(list(stage.folder().glob("*.sock"))) == 2
    assert listening == {stage.ports["worker"]}
    with stage.bed.worker(lane="fast") as other:
        pid = other.process.pid
        assert not [it for it in psutil.Process(pid).net_connections() if it.status == psutil.CONN_LISTEN]
        assert len(list(stage.folder().glob("*-fast-*.sock"))) == 1
    assert len(list(stage.folder().glob("*.sock"))) == 2
