"""What every test may ask for: a real Redis server, emptied for each test, and a check of what is left in it."""

from bed import early  # isort: skip - in virtual time it replaces the clock of what is imported below
import asyncio
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.schemas.examples import PROFILE, examples
from support.waiting import wait_for_a_whole_day, wait_until
from support.worker_process import WorkerProcess
from tiers import is_apart, mark_redis, mark_tier
from toolfleet import Caller, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.app import FleetApp, make_app

# What properties are tried on is the same in each run: what a change has broken is seen, and nothing else. `make explore`
# tries others, each time, and more of them. How long an example takes is the machine's, and fails no test.
_UNTIMED = settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", _UNTIMED, derandomize=True)
settings.register_profile("exploring", _UNTIMED, print_blob=True)
settings.load_profile(PROFILE)

# The folders of tests are in memory where there is room: each write of their Redis and databases would wait for the disk.
_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 * 2**30
if (
    _MEMORY.is_dir()
    and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and all of them stay: the garbage collector looks through them neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure() -> None:
    """Refuse to run tests in virtual time beside others: without their clock they would fail one by one."""
    if early.is_mixed:
        raise pytest.UsageError(f"{early.VIRTUAL} needs a process of its own: name nothing else beside it")


def pytest_report_header() -> str | None:
    """Say what this process of pytest cannot run."""
    return None if early.is_virtual else f"not run here, for they need a process of their own: pytest {early.VIRTUAL}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test is in the tier that is asked for are not even imported; nor are those in virtual time elsewhere."""
    if collection_path == early.VIRTUAL and not early.is_virtual:
        return True
    return is_apart(collection_path, str(config.option.markexpr)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test has the mark of its tier, before tests are chosen by marks."""
    for item in items:
        mark_tier(item)
        if isinstance(item, pytest.Function):
            mark_redis(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Another process gets what a test has logged, as UTF-8: a lone surrogate in it would end the whole run."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_settings_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No setting of the person who runs the tests reaches them: no variable, no file, no ignored signal.

    Calls wait for a worker: in most tests that is the test itself, or it comes later; those of what agents do without one
    set `unserved_seconds`.
    """
    os.chdir(tmp_path_factory.mktemp("nowhere"))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # as in the background of a shell, or under nohup
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]
    os.environ["TOOLFLEET_UNSERVED_SECONDS"] = "inf"


@pytest.fixture(scope="session")
def redis_process_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def key_prefix() -> str:
    """What every key begins with; a test file that sets `TOOLFLEET_KEY_PREFIX` has a fixture of its own."""
    return ""


@pytest.fixture
def redis_url(redis_process_url: str, key_prefix: str) -> Iterator[str]:
    """A real Redis, empty at the start; at the end every key in it is one of keys.py, and expires unless it may last."""
    with Redis.from_url(redis_process_url, decode_responses=True) as client:
        client.flushall()
        yield redis_process_url
        for key in client.scan_iter():
            rule = Keys(key_prefix).rule_of(key)
            assert rule is not None, f"key {key!r} is not in keys.py"
            assert rule.lasting or client.ttl(key) != -1, f"key {key!r} never expires"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    async with AsyncRedis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as working directory, far from any `toolfleet.toml` or run file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def lined_app() -> AsyncIterator[FleetApp]:
    """An app whose worker has lines; nothing is at their other end."""
    worker_runtime.start(asyncio.get_running_loop())
    yield make_app(Settings(redis_url="redis://127.0.0.1:1/0"))
    await worker_runtime.stop()


@pytest.fixture(scope="session")
def owls() -> Iterator[ModuleServer]:
    """A module with tools that work, nap, fail, turn away and garble."""
    with serve(make_module()) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    """An agent's fleet, with a worker."""
    try:
        await wait_until(lambda: not any(each.running for each in bed.modules), "what other tests have left has ended")
    except AssertionError as exc:
        raise AssertionError(f"{exc}: {[call for module in bed.modules for call in module.under_way]}") from exc
    for module in bed.modules:
        module.forget()
    async with ToolFleet(settings=bed.settings.model_copy(update={"unserved_seconds": 5})) as fleet:
        yield fleet


@pytest.fixture
def same_day() -> None:
    """No day of UTC ends within half a minute: daily limits begin anew then."""
    wait_for_a_whole_day()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing is closed because the garbage collector has found it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def owner() -> Caller:
    """A caller who may do everything."""
    return Caller(user_id="ada", permission="owner", allowed_modules="*")
