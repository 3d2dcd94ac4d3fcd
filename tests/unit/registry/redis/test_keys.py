"""How keys are built, what holds for those that are found, and which URLs a fleet can work with."""

import pytest

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.urls import (
    SentinelUrl,
    check_broker_url,
    check_redis_url,
    is_http_url,
    read_sentinel_url,
)

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


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/2",
        "redis://",
        "rediss://u:p@h/0?ssl_cert_reqs=required",
        "unix:///run/r.sock?db=3",
        "sentinel://h",
        "sentinel://u:p@h:1,i:2/3?sentinel_password=x",
        "sentinel://h:1;sentinel://i:2/3?ssl_ca_certs=ca.pem",
    ],
)
def test_these_are_for_redis(url: str) -> None:
    """With a password, a database, TLS, a socket or sentinels."""
    assert check_redis_url(url) == url
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:6379", "must start with redis://, rediss://, unix:// or sentinel://"),
        ("", "must start with"),
        ("http://h", "must start with"),
        ("redis://:hunter2@h:abc/0", "must have a port that is a number"),
        ("redis://:hunter2@h/0?decode_responses=true", "must not have the option 'decode_responses'"),
        ("redis://h/0?protocol=3", "must not have the option 'protocol'"),
        ("redis://h/0?ssl_cert_reqs=none", "must not have the option 'ssl_cert_reqs'"),  # there is no TLS
        ("rediss://:hunter2@h/0?ssl_cert_reqs=CERT_REQUIRED", "must have none, optional or required for ssl_cert_reqs"),
        ("sentinel://", "must have a host for each sentinel"),
        ("sentinel://:hunter2@h,/0", "must have a host for each sentinel"),
        ("sentinel://:hunter2@h:abc/0", "must have a port that is a number"),
        ("sentinel://h:1;redis://h:2/0", "must have a port that is a number"),
        ("sentinel://:hunter2@h/three", "must have a database that is a number"),
        ("sentinel://:hunter2@h/0?master=m", "must not have the option 'master'"),
    ],
)
def test_these_are_not(url: str, reason: str) -> None:
    """The reason says why, and repeats nothing that could be a password."""
    with pytest.raises(ValueError, match=reason) as caught:
        check_redis_url(url)

    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="must"):
        check_broker_url(url)


def test_brokers_are_redis_and_rabbitmq() -> None:
    """AMQP is a broker, not a place for results; what Celery does not know is neither."""
    assert check_broker_url("amqp://guest@h//") == "amqp://guest@h//"
    with pytest.raises(ValueError, match="sentinel://"):
        check_redis_url("amqp://guest@h//")
    with pytest.raises(ValueError, match="amqps://"):
        check_broker_url("foo://x")
    with pytest.raises(ValueError, match="must have a port"):
        check_broker_url("amqp://h:x")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sentinel://h", SentinelUrl((("h", 26379),), None, None, 0, {})),
        ("sentinel://h:1,i,[::1]:3/2", SentinelUrl((("h", 1), ("i", 26379), ("::1", 3)), None, None, 2, {})),
        ("sentinel://u:p%40@h:1;sentinel://i:2/3", SentinelUrl((("h", 1), ("i", 2)), "u", "p@", 3, {})),
        # Celery's form has everything with each sentinel.
        ("sentinel://:p@h:1/3;sentinel://:p@i:2/3", SentinelUrl((("h", 1), ("i", 2)), None, "p", 3, {})),
        (
            "sentinel://h?db=4&sentinel_password=x%26",
            SentinelUrl((("h", 26379),), None, None, 4, {"sentinel_password": "x&"}),
        ),
    ],
)
def test_sentinels_are_listed_in_either_way(url: str, expected: SentinelUrl) -> None:
    """With commas or as Celery writes them; user, password and database are those of Redis."""
    assert read_sentinel_url(url) == expected


@pytest.mark.parametrize(("url", "expected"), [("http://h:1/x", True), ("ftp://h", False), ("http://h:x", False)])
def test_modules_are_reached_over_http(url: str, expected: bool) -> None:
    """A module's URL has a host, and a port that is a number."""
    assert is_http_url(url) is expected
