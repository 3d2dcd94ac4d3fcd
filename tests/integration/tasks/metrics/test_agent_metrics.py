"""What an agent counts for Prometheus, and where: on a port, in its program's own registry, or nowhere."""

import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from support.documents import programs
from support.metrics.scraping import scrape, sum_of
from support.programs.fork_server import run
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry import metrics
from toolfleet_registry.settings import Settings

UNKNOWN = ToolCall(tool_name="nobody.knows")
CALLER = Caller(user_id="ada", permission="user")
END = {"outcome": "refused", "error_code": "unknown_module", "effect_state": "none"}


async def test_an_agent_answers_on_a_port_while_its_fleet_is_open(redis_url: str) -> None:
    """Opened twice, it answers until it is closed twice; then nothing is counted any more."""
    with held_port() as port:
        fleet = ToolFleet(settings=Settings(redis_url=redis_url), metrics=port)
        async with fleet, fleet:
            await fleet.call(UNKNOWN, CALLER)
            assert sum_of(scrape(port), "toolfleet_calls_total", module="other", **END) == 1
        assert metrics.calls() is None
        assert scrape(port) == {}


async def test_an_agent_counts_in_the_registry_that_it_is_given(redis_url: str) -> None:
    """Beside what its program has there; a closed fleet leaves it."""
    registry = CollectorRegistry()
    async with ToolFleet(settings=Settings(redis_url=redis_url), metrics=registry) as fleet:
        await fleet.call(UNKNOWN, CALLER)
        labels = {"module": "other", "tool": "other", **END}
        assert registry.get_sample_value("toolfleet_calls_total", labels) == 1
    assert list(registry.collect()) == []


async def test_an_agent_that_says_nothing_counts_nothing(redis_url: str) -> None:
    """Also where its settings have a port: that is for the processes of the fleet."""
    with held_port() as port:
        async with ToolFleet(settings=Settings(redis_url=redis_url, metrics_port=port)) as fleet:
            await fleet.call(UNKNOWN, CALLER)
            assert metrics.calls() is None
            assert scrape(port) == {}


async def test_a_port_that_another_has_stops_no_agent(redis_url: str) -> None:
    """It works, and its log says so."""
    with held_port() as port:
        settings = Settings(redis_url=redis_url)
        async with ToolFleet(settings=settings, metrics=port), ToolFleet(settings=settings, metrics=port) as second:
            assert (await second.call(UNKNOWN, CALLER)).error_code == "unknown_module"
            assert sum_of(scrape(port), "toolfleet_calls_total", **END) == 1


def test_the_program_in_the_guide_counts(redis_url: str, tmp_path: Path) -> None:
    """One call that nobody can run."""
    (tmp_path / "agent.py").write_text(programs("docs/operations/metrics.md")["agent-metrics"])
    env = {"TOOLFLEET_REDIS_URL": redis_url}
    ended = run([sys.executable, "agent.py"], env=env, cwd=tmp_path, timeout_seconds=60)

    assert ended.stdout == "1\n", ended.stderr
