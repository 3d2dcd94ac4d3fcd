"""A whole fleet as a block of a program."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from redis import Redis

from support.module_server import ModuleServer
from support.processes import is_gone
from toolfleet import Caller, Settings, ToolCall, ToolFleet
from toolfleet_cli.local import examples
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.examples import find_examples, find_examples_folder
from toolfleet_cli.local.fleet import local_fleet
from toolfleet_registry.errors import ChildFailed, FleetUnavailable, SettingsError
from toolfleet_registry.settings import load_settings


async def call(settings: Settings, tool: str) -> dict[str, object]:
    async with ToolFleet(settings=settings) as fleet:
        result = await fleet.call(ToolCall(tool_name=tool), Caller(permission="owner", allowed_modules="*"), timeout=40)
        return result.model_dump()


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


def test_a_redis_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    """The message has its address without the password."""
    settings = Settings(redis_url="redis://:secret@127.0.0.1:1/0", module_services={"owls": "http://127.0.0.1:1"})
    with pytest.raises(FleetUnavailable) as caught, local_fleet(tmp_path, settings=settings):
        pytest.fail("it runs")

    assert str(caught.value).startswith("Redis at redis://:**@127.0.0.1:1/0 does not answer: ")


def test_the_examples_are_those_of_the_clone() -> None:
    """Each folder with a `main.py` is one."""
    folder = Path(__file__).parents[4] / "examples"

    assert find_examples_folder() == folder
    assert [example.name for example in find_examples()] == sorted(
        path.name for path in (folder / "modules").iterdir() if (path / "main.py").is_file()
    )


def test_an_installed_wheel_has_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies beside the package's folder: without the project's own file it is no clone."""
    (tmp_path / "examples" / "modules").mkdir(parents=True)
    monkeypatch.setattr(
        examples, "__file__", str(tmp_path / "site-packages" / "toolfleet_cli" / "local" / "examples.py")
    )

    assert find_examples_folder() is None
    with pytest.raises(SettingsError, match="set TOOLFLEET_MODULE_SERVICES"):
        find_examples()


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
