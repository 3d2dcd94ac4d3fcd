"""Each module has its queue, each lane its modules, each call its limits."""

import pytest

from support.published_call import published
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.settings import Settings
from toolfleet_tasks.queues import CONTROL, IDLE, limit_of, nets_around, queue_for, queues_of


def settings(**values: object) -> Settings:
    services = {"research": "http://r:1", "deployer": "http://d:1", "maps": "http://m:1"}
    return Settings(module_services=services, **values)  # type: ignore[arg-type] # rows of different settings


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (ToolDefinition(name="research.search"), ("tools.research", 30, 31, 40)),  # the default
        (ToolDefinition(name="deployer.deploy"), ("tools.deployer", 120, 121, 130)),  # a slow module
        (ToolDefinition(name="maps.route"), ("tools.maps", 5, 6, 15)),  # a setting for the module
        (ToolDefinition(name="maps.route", timeout_seconds=2), ("tools.maps", 2, 3, 12)),  # the tool's own
        (
            ToolDefinition(name="maps.route", timeout_seconds=1e9),
            ("tools.maps", 3600, 3601, 3610),
        ),  # never over the maximum
        (ToolDefinition(name="research.deep.search"), ("tools.research", 30, 31, 40)),  # the first dot splits
    ],
)
def test_a_calls_limits_come_from_the_nearest_rule(tool: ToolDefinition, expected: tuple[str, int, int, int]) -> None:
    """Tool, module, lane: the first that says something decides; soft and hard limits stand above it."""
    limit = limit_of(tool, settings(module_timeouts={"maps": 5}))

    assert (queue_for(published(tool.name)), limit, *nets_around(limit)) == expected


def test_lanes_share_the_modules_out() -> None:
    """Every queue belongs to exactly one of the two lanes, and `all` serves both."""
    fast, slow = queues_of("fast", settings()), queues_of("slow", settings())

    assert fast == ["tools.maps", "tools.research", CONTROL]
    assert slow == ["tools.deployer"]
    assert sorted(queues_of("all", settings())) == sorted(fast + slow)


def test_a_lane_without_modules_has_a_queue_of_its_own() -> None:
    """Its worker serves no other lane meanwhile, and waits for a module that is added."""
    assert queues_of("slow", Settings()) == [IDLE]
