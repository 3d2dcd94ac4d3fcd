"""A fleet on Redis as people run it: with a password, a restricted user, TLS, a socket, a database, sentinels."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.servers.redis_setups import ACL, SETUPS, RedisSetup, behind_sentinels
from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, Conversation, Settings, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.app import FleetApp, make_app

ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})


def bed_on(setup: RedisSetup, module: ModuleServer, folder: Path) -> TestBed:
    logs = folder / "logs"
    logs.mkdir()
    more = {name: value for name, value in setup.settings.items() if name != "redis_url"}
    return TestBed(setup.url, (module,), logs, more)


@pytest.mark.parametrize("name", [name for name in SETUPS if name != "sentinels"])
async def test_a_call_goes_through(owls: ModuleServer, owner: Caller, tmp_path: Path, name: str) -> None:
    """Worker and client reach it, also for a job, leave only keys of the fleet's there, and no password in a log."""
    if "TLS" in name and shutil.which("openssl") is None:
        pytest.skip("makes its certificates with openssl, which is not installed")
    (tmp_path / "redis").mkdir()
    with SETUPS[name](tmp_path / "redis") as setup, setup.look:
        bed = bed_on(setup, owls, tmp_path)
        with bed.worker() as worker:
            async with ToolFleet(settings=bed.settings) as fleet:
                await _goes_through(fleet, owner, setup)
            assert "hoot" not in worker.said()
        # redis-py tells its name by CLIENT, which could end others' connections as well; it does without.
        refused: list[dict[str, str]] = setup.look.acl_log()  # type: ignore[assignment] # synchronous here
        assert {entry["object"] for entry in refused} <= {"client"}


async def _goes_through(fleet: ToolFleet, caller: Caller, setup: RedisSetup) -> None:
    """A call does, and a job; they leave keys of the fleet's, and no others."""
    result = await fleet.call(ECHO, caller)
    assert (result.success, result.result) == (True, {"text": "hu"})
    here = Conversation(conversation_id="c")
    job = await fleet.jobs.start(ECHO, on_complete=["resume_conversation", ECHO], conversation=here, caller=caller)
    async with asyncio.timeout(PATIENCE_SECONDS), contextlib.aclosing(fleet.wakeups.completions("c")) as news:
        end = await anext(news)
    assert (end.wake_id, end.type, end.result) == (job.job_id, "job.completed", {"text": "hu"})
    keys, found = Keys(str(setup.settings.get("key_prefix", ""))), list[str](setup.look.scan_iter())
    assert any("toolfleet:call:" in key for key in found)
    assert [key for key in found if keys.rule_of(key) is None] == []


async def test_the_fleet_follows_its_master(owls: ModuleServer, owner: Caller, tmp_path: Path) -> None:
    """When the master is killed, worker and client find the new one by themselves, and go on as before."""
    (tmp_path / "redis").mkdir()
    with behind_sentinels(tmp_path / "redis") as setup, setup.look:
        bed = bed_on(setup, owls, tmp_path)
        with bed.worker() as worker:
            async with ToolFleet(settings=bed.settings) as fleet:
                await _goes_through(fleet, owner, setup)
                setup.servers["master"].kill()
                async with asyncio.timeout(3 * PATIENCE_SECONDS):
                    while not (await fleet.call(ECHO, owner, timeout=2)).success:
                        pass
                assert [result.error for result in await fleet.call_many([ECHO] * 20, owner)] == [None] * 20
                assert worker.process.poll() is None
            async with ToolFleet(settings=bed.settings) as newcomer:
                assert (await newcomer.call(ECHO, owner)).success
            assert "hoot" not in worker.said()


def app_on(**settings: object) -> FleetApp:
    return make_app(Settings.model_validate(settings))


@pytest.mark.usual
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://u:p%2F@[::1]:1?db=3", "redis://u:p%2F@[::1]:1/3"),
        ("rediss://:p@h:1/2?ssl_ca_certs=ca.pem", "rediss://:p@h:1/2"),  # TLS is a setting of its own there
        ("unix:///r.sock", "redis+socket:///r.sock?virtual_host=0"),
        ("unix://u:p@/run/r.sock?db=3", "redis+socket://u:p@/run/r.sock?virtual_host=3"),
        ("sentinel://h", "sentinel://h:26379/0"),
        ("sentinel://u:p%40@h:1,i/3", "sentinel://u:p%40@h:1/3;sentinel://u:p%40@i:26379/3"),  # each in full
        ("sentinel://h:1/3?sentinel_password=x&ssl_cert_reqs=none", "sentinel://h:1/3"),
    ],
)
def test_celery_gets_its_own_form_of_a_url(url: str, expected: str) -> None:
    """Kombu and Celery's backend read the same from it."""
    app = app_on(redis_url=url, sentinel_master="owl")

    assert app.conf.broker_url == expected
    assert app.backend.url == expected.removeprefix("redis+")  # the part before the + chose a class


@pytest.mark.usual
@pytest.mark.parametrize("url", ["redis://h", "rediss://h", "unix:///r.sock?db=3", "sentinel://h,i,j"])
def test_every_connection_is_of_the_same_transport(url: str) -> None:
    """Kombu's own choice, by the URL, would not be ours; and it chooses anew after each failure."""
    connection = app_on(redis_url=url, sentinel_master="owl").connection_for_write()
    seen = set[str]()
    for _ in range(4):
        seen.add(connection.clone().get_transport_cls().__module__)
        seen.add(connection.get_transport_cls().__module__)
        connection.maybe_switch_next()

    assert seen == {"toolfleet_tasks.transport.kombu_transport"}


@pytest.mark.usual
def test_celery_verifies_certificates() -> None:
    """Where a URL says nothing of that, kombu would not verify, and Celery's backend would not start."""
    conf = app_on(redis_url="rediss://h?ssl_ca_certs=ca.pem").conf
    expected = {"ssl_cert_reqs": "required", "ssl_ca_certs": "ca.pem"}

    assert (conf.broker_use_ssl, conf.redis_backend_use_ssl) == (expected, expected)
    assert not app_on(redis_url="redis://h").conf.broker_use_ssl


@pytest.mark.usual
def test_celery_knows_the_master() -> None:
    """And how to talk to a sentinel itself: with its own password, and without waiting long for one that is down."""
    conf = app_on(redis_url="sentinel://:p@h?sentinel_password=eye", sentinel_master="owl").conf

    for options in (conf.broker_transport_options, conf.result_backend_transport_options):
        assert options["master_name"] == "owl"
        assert options["sentinel_kwargs"]["password"] == "eye"
        assert options["sentinel_kwargs"]["socket_timeout"] == 1


@pytest.mark.usual
def test_broker_and_backend_may_be_different_servers() -> None:
    """Each gets what is its own."""
    conf = app_on(redis_url="rediss://r", broker_url="sentinel://s", sentinel_master="owl", key_prefix="acme:").conf

    assert conf.broker_transport_options["master_name"] == "owl"
    assert "master_name" not in conf.result_backend_transport_options
    assert (bool(conf.broker_use_ssl), bool(conf.redis_backend_use_ssl)) == (False, True)
    assert conf.broker_transport_options["global_keyprefix"] == "acme:"
    assert conf.result_backend_transport_options["global_keyprefix"] == "acme:"


@pytest.mark.usual
@pytest.mark.parametrize("prefix", ["", "acme:", "acme_", "acme-", "acme.", "acme", "1"])
def test_celery_stores_a_result_where_we_look_for_it(prefix: str) -> None:
    """It puts a separator after a prefix that ends in none."""
    app = app_on(redis_url="redis://h", key_prefix=prefix)

    assert app.backend.get_key_for_task("x").decode() == app.settings.keys.result("x")


@pytest.mark.usual
def test_the_readme_says_what_a_restricted_user_needs() -> None:
    """It is what the user of these tests has."""
    assert ACL in (Path(__file__).parents[3] / "docs" / "operations" / "redis.md").read_text()
