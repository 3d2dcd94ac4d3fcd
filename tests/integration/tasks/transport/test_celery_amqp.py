"""Which transport an app's connections have, however Celery comes by them."""

from redis import Redis

from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.transport.kombu_transport import FleetTransport


def test_a_task_sent_by_celery_rings_the_bell(redis_url: str) -> None:
    """Beat and programs of other people publish over Celery's pool: without a bell an idle worker looks once a second."""
    app = make_app(Settings(redis_url=redis_url, module_services={"owls": "http://127.0.0.1:1"}))

    app.send_task("toolfleet.execute", args=["{}"], queue="tools.owls")

    with Redis.from_url(redis_url, decode_responses=True) as redis:
        assert redis.llen("tools.owls") == 1
        assert redis.lrange("toolfleet:bell:tools.owls", 0, -1) == ["1"]
    app.close()


def test_the_scheme_of_the_url_stays(redis_url: str) -> None:
    """Flower tells by it that the broker is a Redis, and kombu whether to use TLS."""
    app = make_app(Settings(redis_url=redis_url))
    connection = app.connection_for_write()

    assert connection.as_uri().startswith("redis://")
    assert connection.get_transport_cls() is FleetTransport
    assert connection.Pool(1).new().get_transport_cls() is FleetTransport


def test_no_setting_that_inspect_shows_has_the_password() -> None:
    """Whoever may ask a worker for its configuration sees the transport's options as they are."""
    conf = make_app(Settings(redis_url="redis://ada:s3cret@h:1/0")).conf

    assert "s3cret" not in str([conf.broker_transport_options, conf.result_backend_transport_options])
