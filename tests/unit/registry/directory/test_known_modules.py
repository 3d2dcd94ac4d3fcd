"""What a process knows of modules: its settings come first, and the directory adds to them."""

from typing import Any

import pytest

from toolfleet_registry.directory.entries import SETTINGS, ModuleEntry
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.settings import Settings


def known(**settings: Any) -> KnownModules:
    return KnownModules(Settings(**settings), clock=lambda: 100.0)


def entry(module: str = "owls", url: str | None = "http://owls.test", **fields: Any) -> dict[str, ModuleEntry]:
    return {module: ModuleEntry(module=module, url=url, **fields)}


def test_a_module_that_was_added_is_called_as_if_the_settings_had_it() -> None:
    """At its address, in its lane, within its limit."""
    modules = known(module_services={"git": "http://git.test"})

    assert modules.take(entry(slow=True, timeout_seconds=3))
    assert modules.names == modules.served == {"git", "owls"}
    assert modules.settings.module_services == {"git": "http://git.test", "owls": "http://owls.test"}
    assert "owls" in modules.settings.slow_modules
    assert modules.settings.module_timeouts == {"owls": 3}
    assert not modules.take(entry(slow=True, timeout_seconds=3))


def test_a_name_in_the_settings_is_never_overridden() -> None:
    """Neither its address, nor its lane, nor its limit."""
    modules = known(module_services={"owls": "http://mine.test"})

    assert not modules.take(entry(slow=True, timeout_seconds=3))
    assert modules.settings.module_services == {"owls": "http://mine.test"}


def test_of_two_processes_settings_the_older_address_is_in_effect() -> None:
    """It stands in the directory."""
    modules = known(module_services={"owls": "http://mine.test"})

    assert modules.take(entry(url="http://older.test", origin=SETTINGS))
    assert modules.settings.module_services == {"owls": "http://older.test"}


def test_a_worker_serves_no_module_of_anothers_settings() -> None:
    """It may not reach it; agents may call it."""
    modules = known()
    modules.take(entry(origin=SETTINGS))

    assert modules.names == {"owls"}
    assert not modules.served
    assert modules.settings.module_services == {}


@pytest.mark.parametrize(("removed_at", "served"), [(95.0, {"owls"}), (80.0, set())])
def test_a_removed_module_is_served_until_it_is_drained(removed_at: float, served: set[str]) -> None:
    """It takes no new calls from its removal on; what waits after its time is ended."""
    modules = known()
    modules.take(entry(removed_at=removed_at, drain_seconds=10))

    assert modules.names == frozenset()
    assert modules.served == served
    assert modules.ending == {"owls"} - served


def test_what_the_settings_call_slow_is_as_the_directory_says() -> None:
    """One word for all processes: the directory's."""
    modules = known(slow_modules={"owls", "git"})
    modules.take(entry())

    assert modules.settings.slow_modules == {"git"}
