"""How keys are built, and what holds for those that are found."""

import pytest

from toolfleet_registry.redis.keys import Keys

KEYS = Keys("acme:")


@pytest.mark.parametrize(
    ("key", "name", "lasts"),
    [
        (KEYS.module_manifest("git"), "module_manifest:git", False),
        (KEYS.refresh_slot(7), "toolfleet:refresh:7", False),
        (KEYS.modes, "toolfleet:modes", False),
        (KEYS.result("x-1"), "celery-task-meta-x-1", False),
        (KEYS.queue("tools.git"), "tools.git", True),
        (KEYS.notify_key("tools.git"), "toolfleet:bell:tools.git", True),
        (KEYS.notify_key("toolfleet.control"), "toolfleet:bell:toolfleet.control", True),
        (KEYS.quarantine, "toolfleet:quarantine", True),
        (KEYS.quarantined, "toolfleet:quarantined", True),
        (KEYS.registry.tools, "toolfleet:registry:tools", True),
        (KEYS.registry.pins, "toolfleet:registry:pins", True),
        (KEYS.registry.events, "toolfleet:registry:events", True),
        (KEYS.registry.revision, "toolfleet:registry:revision", True),
    ],
)
def test_each_key_has_the_prefix_and_a_rule(key: str, name: str, lasts: bool) -> None:
    """It expires, or there is a reason why it lasts."""
    rule = KEYS.rule_of(key)

    assert key == f"acme:{name}"
    assert rule is not None
    assert bool(rule.lasting) is lasts
    assert KEYS.rule_of(name) is None
    assert Keys().rule_of(name) == rule


def test_without_a_prefix_keys_are_as_others_know_them() -> None:
    """The seed's key of a manifest, and Celery's of a result."""
    assert Keys().module_manifest("git") == "module_manifest:git"
    assert Keys().result("x") == "celery-task-meta-x"


def test_channels_have_the_prefix() -> None:
    """Two fleets on one Redis do not hear each other's news."""
    assert KEYS.manifests_changed == "acme:toolfleet:manifests-changed"


@pytest.mark.parametrize("key", ["acme:toolfleet:", "acme:toolfleet:bell:else", "acme:x", "tools.git", ""])
def test_what_nobody_makes_has_no_rule(key: str) -> None:
    """So that a test finds a key that is in no list."""
    assert KEYS.rule_of(key) is None
