"""Several members of a fleet in one interpreter: each has what a process has once."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from toolfleet_registry.system.process import Process, enter, this_process
from toolfleet_registry.system.shared_timers import shared_timers
from toolfleet_tasks import worker_runtime


def _in(process: Process, work: Callable[[], Any]) -> Any:
    """What `work` returns in a context of that process."""
    context = contextvars.copy_context()
    context.run(enter, process)
    return context.run(work)


def _runtime() -> object:
    return worker_runtime.current() or worker_runtime.start(asyncio.get_running_loop())


def _timers() -> object:
    return shared_timers(asyncio.get_running_loop())


def _part() -> object:
    return this_process().part(dict)


@pytest.mark.parametrize("had", [_runtime, _timers, _part, this_process])
async def test_each_process_has_its_own(had: Callable[[], object]) -> None:
    """Of two on one loop, and of the one that everything else runs in; each has the same whenever it is asked."""
    one, other = Process("one:1"), Process("other:1")

    first, second, again = _in(one, had), _in(other, had), _in(one, had)

    assert first is again
    assert first is not second
    assert worker_runtime.current() is None
    assert this_process() not in {one, other}


async def test_a_task_runs_in_the_process_that_began_it() -> None:
    """It need not enter it."""

    async def name() -> str:
        return this_process().name

    assert await _in(Process("one:1"), lambda: asyncio.create_task(name())) == "one:1"


@pytest.mark.parametrize("process", [this_process(), Process("one:1")])
def test_a_thread_runs_in_the_process_that_began_it(process: Process) -> None:
    """Though it has a context of its own."""
    found = list[Process]()
    thread = process.thread(lambda: found.append(this_process()), name="finds")

    thread.start()
    thread.join()

    assert found == [process]
