"""Which URLs a fleet can work with."""

import pytest

from toolfleet_registry.urls import check_broker_url, check_redis_url, is_http_url


@pytest.mark.parametrize(
    "url", ["redis://h:1/2", "rediss://u:p@h/0?ssl_cert_reqs=required", "unix:///run/r.sock?db=3", "redis://"]
)
def test_these_are_for_redis(url: str) -> None:
    """With a password, a database, TLS or a socket."""
    assert check_redis_url(url) == url
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:6379", "must start with redis://, rediss:// or unix://"),
        ("", "must start with"),
        ("http://h", "must start with"),
        ("redis://:hunter2@h:abc/0", "must have a port that is a number"),
        ("redis://:hunter2@h/0?decode_responses=true", "must not have the option 'decode_responses'"),
        ("redis://h/0?protocol=3", "must not have the option 'protocol'"),
    ],
)
def test_these_are_not(url: str, reason: str) -> None:
    """The reason says why, and repeats nothing that could be a password."""
    with pytest.raises(ValueError, match=reason) as caught:
        check_redis_url(url)

    assert "hunter2" not in str(caught.value)


def test_brokers_are_redis_and_rabbitmq() -> None:
    """Sentinel and AMQP are brokers, not places for results; what Celery does not know is neither."""
    assert check_broker_url("amqp://guest@h//") == "amqp://guest@h//"
    assert check_broker_url("sentinel://h:26379") == "sentinel://h:26379"
    with pytest.raises(ValueError, match="amqps://"):
        check_broker_url("foo://x")


@pytest.mark.parametrize(("url", "expected"), [("http://h:1/x", True), ("ftp://h", False), ("http://h:x", False)])
def test_modules_are_reached_over_http(url: str, expected: bool) -> None:
    """A module's URL has a host, and a port that is a number."""
    assert is_http_url(url) is expected
