"""A whole fleet as a block of a program."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from redis import Redis

from support.module_server import ModuleServer
from support.processes import is_gone
from support.waiting import wait_until_sync
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_cli.local import modules
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.fleet import local_fleet
from toolfleet_cli.local.modules import find_examples, find_examples_folder, own_modules
from toolfleet_registry.errors import ChildFailed, FleetUnavailable, SettingsError
from toolfleet_registry.settings import load_settings

_WAITS = '''"""A module that has to be waited for."""
import pathlib, sys
from toolfleet.sdk import Module

while not (pathlib.Path(__file__).parents[1] / "go").exists():
    {otherwise}
module = Module("{name}")

@module.tool(permission="guest", effect="read")
async def greet() -> str:
    """Greet."""
    return "hoot"

app = module.app
'''


async def call(settings: Settings, tool: str) -> dict[str, object]:
    async with ToolFleet(settings=settings) as fleet:
        result = await fleet.call(ToolCall(tool_name=tool), Caller(permission="owner", allowed_modules="*"))
        return result.model_dump()


async def refreshed(settings: Settings) -> None:
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()


def test_it_works_with_what_the_settings_name(tmp_path: Path, redis_url: str, owls: ModuleServer) -> None:
    """A Redis and modules of somebody else's are used, and left as they are; Flower is not there unless asked for.

    An error in the block comes through, and nothing is left of the fleet.
    """
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url}, slow_modules=frozenset({"owls"}))
    said: list[str] = []
    pids: dict[str, int] = {}
    with pytest.raises(ZeroDivisionError), local_fleet(tmp_path, settings=settings, announce=said.append) as fleet:  # noqa: PT012 - the block is the point
        pids.update(fleet.pids())

        assert set(pids) == {"worker-fast", "worker-slow", "beat"}
        assert (fleet.settings, fleet.flower_url) == (settings, None)
        assert set(said) == {"worker-fast is ready", "worker-slow is ready", "beat is ready"}
        assert asyncio.run(call(fleet.settings, "owls.echo"))["success"]
        raise ZeroDivisionError
    assert all(is_gone(pid) for pid in pids.values())
    with Redis.from_url(redis_url) as redis:
        assert redis.ping()


def test_a_worker_that_does_not_start_is_an_error_with_its_reason(
    tmp_path: Path, redis_url: str, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been started by then ends; the message has the last lines of the worker's log."""
    monkeypatch.setenv("USE_FAST_LOCALS", "1")  # the pool cannot work with it
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url})
    with pytest.raises(ChildFailed, match="instead of starting") as caught, local_fleet(tmp_path, settings=settings):
        pytest.fail("it runs")

    assert "USE_FAST_LOCALS" in str(caught.value)


def test_it_goes_on_without_a_module_that_is_not_ready_and_uses_it_once_it_is(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loads for long holds nobody up, nor does one that ends: both are named, and tried again."""
    monkeypatch.setattr("toolfleet_cli.local.fleet._MODULES_SECONDS", 0)
    os.mkfifo(tmp_path / "gate")  # nobody reads on before it is written to
    for name in ("owls", "crows"):
        (tmp_path / name).mkdir()
    (tmp_path / "owls" / "main.py").write_text(
        _WAITS.format(name="owls", otherwise=f"open({str(tmp_path / 'gate')!r}).read()")
    )
    (tmp_path / "crows" / "main.py").write_text(_WAITS.format(name="crows", otherwise="sys.exit(3)"))
    said: list[str] = []
    own = own_modules([tmp_path / "owls", tmp_path / "crows"], frozenset())
    with local_fleet(
        tmp_path / "data", settings=Settings(redis_url=redis_url), own_modules=own, announce=said.append
    ) as fleet:
        assert {name for name, each in fleet.processes().items() if each.state != "ready"} == {"owls", "crows"}
        assert {line.split(":")[0] for line in said if line.startswith("The fleet goes on")} == {
            f"The fleet goes on without {name}, and uses it once it is ready" for name in ("crows", "owls")
        }
        (tmp_path / "go").touch()
        (tmp_path / "gate").write_text("")

        def are_ready() -> bool:
            fleet.tend()
            return {each.state for each in fleet.processes().values()} == {"ready"}

        wait_until_sync(are_ready, "both are ready")
        asyncio.run(refreshed(fleet.settings))
        assert [asyncio.run(call(fleet.settings, f"{name}.greet"))["result"] for name in ("owls", "crows")] == [
            "hoot"
        ] * 2


def test_workers_take_other_settings_over_or_the_former_ones_stay(
    tmp_path: Path, redis_url: str, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not start change nothing; the first ones end only when others are ready."""
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url})
    wanted = settings.model_copy(update={"module_services": {"owls": owls.url, "crows": "http://127.0.0.1:1"}})
    with local_fleet(tmp_path, settings=settings) as fleet:
        first = fleet.pids()["worker-fast"]

        def is_over() -> bool:
            fleet.tend()
            return not fleet.is_changing

        with monkeypatch.context() as broken:
            broken.setenv("USE_FAST_LOCALS", "1")  # the pool cannot work with it
            fleet.reconfigure(wanted)
            wait_until_sync(is_over, "the new worker has ended")
        assert "USE_FAST_LOCALS" in str(fleet.refusal)
        assert (fleet.settings, fleet.pids()["worker-fast"]) == (settings, first)
        assert asyncio.run(call(fleet.settings, "owls.echo"))["success"]

        fleet.reconfigure(wanted)
        wait_until_sync(is_over, "the new worker is ready")
        assert (fleet.settings, fleet.refusal) == (wanted, None)
        assert fleet.pids()["worker-fast"] != first
        assert asyncio.run(call(fleet.settings, "owls.echo"))["success"]


def test_a_redis_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    """The message has its address without the password."""
    settings = Settings(redis_url="redis://:secret@127.0.0.1:1/0", module_services={"owls": "http://127.0.0.1:1"})
    with pytest.raises(FleetUnavailable) as caught, local_fleet(tmp_path, settings=settings):
        pytest.fail("it runs")

    assert str(caught.value).startswith("Redis at redis://:**@127.0.0.1:1/0 does not answer: ")


def test_the_examples_are_those_of_the_clone() -> None:
    folder = Path(__file__).parents[4] / "examples"

    assert find_examples_folder() == folder
    assert [example.name for example in find_examples()] == sorted(
        path.name for path in (folder / "modules").iterdir() if (path / "main.py").is_file()
    )


def test_an_installed_wheel_has_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies beside the package's folder: without the project's own file it is no clone."""
    (tmp_path / "examples" / "modules").mkdir(parents=True)
    monkeypatch.setattr(
        modules, "__file__", str(tmp_path / "site-packages" / "toolfleet_cli" / "local" / "examples.py")
    )

    assert find_examples_folder() is None
    assert find_examples() == []


def test_examples_that_cannot_run_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their libraries are an extra of their own."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    with pytest.raises(SettingsError, match=r"need uvicorn: pip install -e '\.\[worker,examples\]'"):
        find_examples()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            redis_url="redis://:pass word@h/1",
            broker_url="amqp://x",
            module_services={"a": "http://a", "b": "https://b:1/c"},
            slow_modules=frozenset({"a", "b"}),
            default_guest_modules=frozenset(),
            module_timeouts={"a": 5},
            drain_seconds=1.5,
            lane="slow",
            log_format="json",
        ),
    ],
)
def test_settings_come_through_the_environment_unchanged(
    settings: Settings, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child process reads exactly ours, whatever file it may find."""
    (elsewhere / "toolfleet.toml").write_text('slow_modules = ["other"]\nlane = "fast"\n')
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)

    assert load_settings() == settings
    assert os.environ["TOOLFLEET_LANE"] == settings.lane
