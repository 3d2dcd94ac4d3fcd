"""What somebody has who has installed one thing: an agent, a module or a worker, each in an environment of its own."""

import json

import pytest

from release.environments import Environment
from toolfleet_cli.local.redis_server import held_port

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]
MOST_PACKAGES = 15
MOST_CPU_SECONDS = 0.2  # to import the SDK, user and system together; a median of 0.15 was measured
RUNS = 5  # the least of them: what disturbs a measurement makes it longer
QUEUES = {"celery", "kombu", "redis", "toolfleet"}
EVERY_NAME = """
import importlib, sys
for module in map(importlib.import_module, sys.argv[1:]):
    for name in module.__all__:
        getattr(module, name)
print("ok")
"""
AGENT = """
import asyncio

from toolfleet import Caller, ToolCall, ToolFleet


async def main():
    async with ToolFleet() as fleet:
        greet = ToolCall(tool_name="owls.greet", arguments={"name": "Ada"})
        result = await fleet.call(greet, Caller(permission="user"))
        print(result.result, result.error, result.audit.attempts)


asyncio.run(main())
"""


def test_a_module_installs_few_packages(module: Environment) -> None:
    """At most 15, with the SDK itself, and no queue."""
    packages = module.packages()

    assert len(packages) <= MOST_PACKAGES, sorted(packages)
    assert packages.isdisjoint(QUEUES)


def test_importing_the_sdk_takes_little_time(module: Environment) -> None:
    """A module that scales from zero is started for a call that waits."""
    assert min(module.cpu_seconds("import toolfleet.sdk") for _ in range(RUNS)) < MOST_CPU_SECONDS


def test_an_agent_has_every_public_name(agent: Environment) -> None:
    """Names that are imported when they are asked for are there."""
    assert agent.run("python", "-c", EVERY_NAME, "toolfleet", "toolfleet.formats") == "ok\n"


def test_a_worker_has_every_public_name(worker: Environment) -> None:
    """Also those that an agent needs an extra for."""
    assert worker.run("python", "-c", EVERY_NAME, "toolfleet", "toolfleet.formats", "toolfleet.webhooks") == "ok\n"


def test_an_agent_has_no_worker_library(agent: Environment, worker: Environment) -> None:
    """What runs calls is an extra."""
    assert {"httptools", "flower"} <= worker.packages() - agent.packages()


def test_an_agents_call_reaches_a_module_through_a_worker(
    agent: Environment, module: Environment, worker: Environment, redis_url: str
) -> None:
    """Each is a process of its own environment; the module is one that `toolfleet create module` has written."""
    worker.run("toolfleet", "create", "module", "owls", "--directory", str(module.folder))
    with held_port() as port:
        known = {"TOOLFLEET_REDIS_URL": redis_url}
        owls = {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": f"http://127.0.0.1:{port}"})}
        with (
            module.running("uvicorn", "owls.main:app", "--port", str(port), ready="Application startup complete"),
            worker.running("toolfleet", "worker", ready="toolfleet worker ready", env={**known, **owls}),
        ):
            said = agent.run("python", "-c", AGENT, env=known)

    assert said == "Hello, Ada. None 1\n"
