"""Several processes that change one registry at the same time."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.programs import racing_registry
from toolfleet.stores import ToolRegistry, ToolSpec
from toolfleet_cli.local.child_processes import stop
from toolfleet_registry.manifests.digests import digest_of

PROCESSES = 5
ROUNDS = 8

shared = pytest.mark.parametrize("kind", ["redis", "sqlite", "postgresql"], indirect=True)


@contextmanager
def racers(url: str, key_prefix: str) -> Generator[subprocess.Popen[str]]:
    """The processes, by the one that has forked them."""
    words = [sys.executable, str(Path(racing_registry.__file__)), url, key_prefix, str(PROCESSES)]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert said_by(started) == ["ready"] * PROCESSES
        yield started
    finally:
        stop(started, patience_seconds=0)  # type: ignore[arg-type] # text or bytes is nothing to it
        for stream in (started.stdin, started.stdout):
            assert stream is not None
            stream.close()


def said_by(started: subprocess.Popen[str]) -> list[str]:
    assert started.stdout is not None
    with ThreadPoolExecutor(1) as reader:
        said: list[str] = json.loads(reader.submit(started.stdout.readline).result(60))
    return said


def race(started: subprocess.Popen[str], name: str) -> list[str]:
    assert started.stdin is not None
    started.stdin.write(f"{name}\n")
    started.stdin.flush()
    return said_by(started)


@shared
def test_of_processes_that_register_one_version_one_wins(
    store_url: str, key_prefix: str, registries: Callable[[], ToolRegistry]
) -> None:
    """The others get `ValueError`, and nothing that they did beside is lost; the first ones find no tables."""
    with racers(store_url, key_prefix) as started:
        for number in range(ROUNDS):
            said = race(started, f"tool {number:02}")
            assert sorted(said) == ["lost"] * (PROCESSES - 1) + ["won"]
            registration = registries().get(f"tool {number:02}")
            assert registration is not None
            assert registration.spec.input_schema == {"by": str(said.index("won"))}

    registry = registries()
    last = {f"tool {ROUNDS - 1:02}": "digest"}
    assert registry.pins() == {str(number): last for number in range(PROCESSES)}
    events = registry.events()
    assert [event.tool_name for event in events] == [f"tool {number:02}" for number in range(ROUNDS)]
    assert [int(event.id.rpartition("-")[2]) for event in events] == [*range(1, ROUNDS + 1)]


@shared
def test_processes_that_roll_back_lose_no_version(
    store_url: str, key_prefix: str, registries: Callable[[], ToolRegistry]
) -> None:
    """Whoever was last is in force; every version is kept once, and the events tell how it came about."""
    registry = registries()
    with racers(store_url, key_prefix) as started:
        for number in range(ROUNDS):
            name = f"tool {number:02}"
            registry.register(ToolSpec(tool_name=name, version="0.0.0", input_schema={}, output_schema={}))
            assert race(started, f"back {name}") == ["back"] * PROCESSES

            present = registry.get(name)
            assert present is not None
            versions = ["0.0.0", *(f"{process}.0.1" for process in range(PROCESSES))]
            assert [each.spec.version for each in registry.versions(name)] == versions
            events = [event for event in registry.events() if event.tool_name == name]
            assert (events[-1].version, events[-1].kind) == (present.spec.version, "rolled_back")
            for before, event in itertools.pairwise(events):
                assert event.version != before.version
                assert (event.kind == "rolled_back") == (event.version == "0.0.0")
            assert present.rolled_back_from == events[-2].version


def test_threads_share_a_registry(registry: ToolRegistry) -> None:
    """Of those who replace the same specification, one does; nobody's approval is lost."""
    first = ToolSpec(tool_name="x", version="0", input_schema={}, output_schema={})
    registry.register(first)
    registry.pin("m", {})

    def change(number: int) -> bool:
        registry.approve("m", f"m.{number}", "digest")
        try:
            registry.replace(
                first.model_copy(update={"version": str(number), "tags": [str(number)]}), expected=digest_of(first)
            )
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(change, range(1, 17), timeout=60)].count(True) == 1
    assert registry.pins()["m"] == {f"m.{number}": "digest" for number in range(1, 17)}
    assert [event.kind for event in registry.events()] == ["registered", "changed"]
