"""Where settings come from, in which order, and how a wrong one is reported."""

import os
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from toolfleet import ToolFleet
from toolfleet_registry.config.run_file import RunFile
from toolfleet_registry.config.setting_sources import REMOVED, SettingOrigin, origin_of
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings, load_declared, load_environment, load_settings

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda name, value: monkeypatch.setenv(f"TOOLFLEET_{name}", value)


def error_of(**overrides: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)
    return str(caught.value)


def test_the_defaults_are_valid() -> None:
    """Nothing needs to be set to start."""
    settings = load_settings()
    assert settings.redis_url is None
    assert settings.module_services == {}
    assert (settings.default_timeout, settings.tool_execution_timeout) == (30, 120)
    assert "garmin" in settings.slow_modules
    assert load_settings(key_prefix="acme-1:").keys == Keys("acme-1:")


TIMES = sorted(name for name in Settings.model_fields if name.endswith(("_seconds", "_timeout")))


@pytest.mark.parametrize("name", TIMES)
def test_a_setting_of_seconds_takes_a_fraction(name: str, env: Any) -> None:
    """Each of them, and so do the limits of single modules. A whole number stays one, as it is shown and stored."""
    before = getattr(load_settings(), name) or 60
    env(name.upper(), str(before + 0.5))
    assert getattr(load_settings(), name) == before + 0.5
    env(name.upper(), str(before))
    env("MODULE_TIMEOUTS", '{"owls": 0.25}')
    whole = load_settings()
    assert str(getattr(whole, name)) in {str(before), str(float(before))}
    assert whole.module_timeouts == {"owls": 0.25}


def test_no_time_is_endless(env: Any) -> None:
    """Nor is it no number at all."""
    for endless in ("inf", "nan"):
        env("RESULT_TTL_SECONDS", endless)
        with pytest.raises(SettingsError, match="TOOLFLEET_RESULT_TTL_SECONDS: Input should be"):
            load_settings()


def test_the_first_source_wins(elsewhere: Path, env: Any) -> None:
    """Arguments, then the environment, then `toolfleet.toml`, then the run file."""
    names = ("default_timeout", "tool_execution_timeout", "result_ttl_seconds", "drain_seconds")
    RunFile(pid=os.getpid(), settings=dict.fromkeys(names, 1)).write(elsewhere)
    (elsewhere / "toolfleet.toml").write_text("".join(f"{name} = 2\n" for name in names[:3]))
    for name in names[:2]:
        env(name.upper(), "3")
    settings = load_settings(default_timeout=4)
    assert [getattr(settings, name) for name in names] == [4, 3, 2, 1]


def test_files_are_found_from_any_folder_below(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest one counts."""
    below = elsewhere / "a" / "b"
    below.mkdir(parents=True)
    (elsewhere / "toolfleet.toml").write_text("default_timeout = 7")
    RunFile(pid=os.getpid(), settings={"redis_url": "redis://up"}).write(elsewhere)
    monkeypatch.chdir(below)
    assert load_settings().default_timeout == 7
    assert load_settings().redis_url == "redis://up"
    (elsewhere / "a" / "toolfleet.toml").write_text("default_timeout = 8")
    assert load_settings().default_timeout == 8


def test_a_toml_file_may_set_everything(elsewhere: Path) -> None:
    """Tables and lists as TOML has them."""
    (elsewhere / "toolfleet.toml").write_text(
        'slow_modules = ["git"]\n[module_services]\ngit = "http://git:8000/"\n[module_timeouts]\ngit = 60\n'
    )
    settings = load_settings()
    assert settings.slow_modules == {"git"}
    assert settings.module_services == {"git": "http://git:8000"}  # so that a path can follow
    assert settings.module_timeouts == {"git": 60}


@pytest.mark.parametrize("name", ["slow_modules", "default_guest_modules", "context_modules"])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("git", {"git"}),
        ("git,mail", {"git", "mail"}),
        (" git , mail ,", {"git", "mail"}),
        ('["git", "mail"]', {"git", "mail"}),
        (" []", set()),
        (",", set()),
    ],
)
def test_lists_are_comma_separated_or_json(env: Any, name: str, text: str, names: set[str]) -> None:
    """In the environment."""
    env(name.upper(), text)
    assert getattr(load_settings(), name) == names


def test_services_are_json(env: Any) -> None:
    """Name to URL; an empty variable counts as unset."""
    env("MODULE_SERVICES", '{"git": "http://git:8000", "mail": "https://mail/base/"}')
    assert load_settings().module_services == {"git": "http://git:8000", "mail": "https://mail/base"}
    env("MODULE_SERVICES", "")
    assert load_settings().module_services == {}


@pytest.mark.parametrize(("interval", "stale", "ttl"), [(300, 900, 3600), (20, 60, 3600), (3000, 9000, 9000)])
def test_one_missed_reading_loses_no_tool(interval: float, stale: float, ttl: float) -> None:
    """After three its module is stale, and its tools are kept for an hour, or until then."""
    settings = load_settings(refresh_interval_seconds=interval)
    assert (settings.manifest_stale_seconds, settings.manifest_ttl_seconds) == (stale, ttl)


A_URL = "module 'git' needs an http:// or https:// URL with a host"
TOO_SHORT = " (1) must be at least 2 s, or a running call is delivered again before its worker has renewed its lease."
NO_MASTER = "TOOLFLEET_SENTINEL_MASTER must be set: the name of the master that the sentinels of TOOLFLEET_{} watch."


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "DEFAULT_TIMEOUT",
            "soon",
            ": Input should be a valid number, unable to parse string as a number, not 'soon'.",
        ),
        ("DEFAULT_TIMEOUT", "0", ": Input should be greater than 0, not '0'."),
        ("LOG_FORMAT", "xml", ": Input should be 'console' or 'json', not 'xml'."),
        ("MODULE_SERVICES", "git=http://git", ": must be JSON (Expecting value: line 1 column 1 (char 0))."),
        ("MODULE_SERVICES", "[]", ": Input should be a valid dictionary."),
        ("MODULE_SERVICES", '{"git": 8000}', ", at git: Input should be a valid string."),
        ("MODULE_SERVICES", '{"a.b": "http://git"}', ": module name 'a.b' may have letters, digits, '_' and '-' only."),
        ("MODULE_SERVICES", '{"git": "git:8000"}', f": {A_URL}."),
        ("SLOW_MODULES", "[git]", ": must be JSON (Expecting value: line 1 column 2 (char 1))."),
        ("REDIS_URL", "localhost:6379", ": must start with redis://, rediss://, unix:// or sentinel://."),
        ("VISIBILITY_TIMEOUT", "1", TOO_SHORT),
        ("KEY_PREFIX", "fleet*", ": may have letters, digits, '_', '-', ':' and '.' only."),
        *((name, "sentinel://h", None) for name in ("REDIS_URL", "BROKER_URL")),
    ],
)
def test_a_wrong_setting_is_one_sentence(env: Any, name: str, value: str, told: str | None) -> None:
    """It names the setting and says what it must be; or names the one that is missing beside it."""
    env(name, value)
    assert error_of() == (f"TOOLFLEET_{name}{told}" if told else NO_MASTER.format(name))


@pytest.mark.parametrize(
    "url",
    ["git", "ftp://git", "http://", "http://:80", "http://git:port", "http://git:99999", "http://git:0", "http://[::1"],
)
def test_a_module_needs_a_url_that_can_be_asked(url: str) -> None:
    """Found out at the start, not at the first look."""
    assert A_URL in error_of(module_services={"git": url})


def test_several_wrong_settings_are_several_sentences() -> None:
    """All are said at once."""
    assert error_of(default_timeout=0, log_level="LOUD").count("TOOLFLEET_") == 2


def test_an_unknown_setting_is_refused(elsewhere: Path) -> None:
    """A typo in the file does not pass silently: its place is named, and what was probably meant."""
    toml = elsewhere / "toolfleet.toml"
    toml.write_text("# ours\nredis_ulr = 'redis://a'\n[module_service]\na = 'http://a'\n[nonsense]\n")
    assert error_of() == (
        f"{toml}, line 2: redis_ulr: there is no such setting; did you mean redis_url? "
        f"{toml}, line 3: module_service: there is no such setting; did you mean module_services? "
        f"{toml}, line 5: nonsense: there is no such setting."
    )
    toml.unlink()
    assert error_of(redis_ulr="a") == "TOOLFLEET_REDIS_ULR: there is no such setting; did you mean redis_url?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("default_timeout = 0", 1),
        ("slow_modules = [\n  'a',\n]\n'default_timeout' = 0", 4),
        ("lane = 'fast'\n\n\tdefault_timeout=0\n[module_timeouts]\ndefault_timeout = 3", 3),
    ],
)
def test_a_wrong_setting_of_the_file_is_named_with_its_line(elsewhere: Path, text: str, line: int) -> None:
    """And not as the variable that nobody has set."""
    (elsewhere / "toolfleet.toml").write_text(text)
    assert error_of().startswith(f"{elsewhere / 'toolfleet.toml'}, line {line}: default_timeout: Input should be")


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("TOOLFLEET_DEFALT_TIMEOUT", "; did you mean TOOLFLEET_DEFAULT_TIMEOUT?"),
        ("TOOLFLEET_NONSENSE", "."),
        ("TOOLFLEET_DEFAULT_TIMEOUT", None),
        ("toolfleet_lane", None),
        ("TOOLFLEET_MODULE_KEY", None),  # a module's
        ("TOOLFLEET_ANNOUNCE_KEY", None),  # of a host
        ("TOOLFLEET_WORKER_NOTE", None),  # set by the parent of a worker
        ("TOOLFLEET_COMMAND", None),  # set by the example modules
        ("TOOLFLEET_ENVIRONMENT_ONLY", None),  # set by the parent of a fleet's process
        ("TOOLFLEET_REDIS_SERVICE_HOST", None),  # set by Kubernetes, for a service `toolfleet-redis`
        ("TOOLFLEET_REDIS_PORT_6379_TCP_ADDR", None),
        ("TOOLFLEET_REDIS_PORT", None),
    ],
)
def test_a_misspelt_variable_is_told_once(
    env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, variable: str, told: str | None
) -> None:
    """With what was probably meant, if anything is like it; what is somebody else's business is not."""
    monkeypatch.setattr("toolfleet_registry.config.setting_sources._warned", set())
    monkeypatch.setenv(variable, "fast" if variable.endswith("lane") else "3")
    load_settings()
    load_settings()

    words = f"{variable} is no setting, and changes nothing"
    assert [record.message for record in caplog.records] == ([] if told is None else [words + told])


def test_a_setting_that_is_gone_is_told_of_once(
    elsewhere: Path, env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what holds in its place; wherever it is still set, whatever its value is, it ends no start."""
    monkeypatch.setattr("toolfleet_registry.config.setting_sources._warned", set())
    env("GATEWAY_STREAMS", "many")
    toml = elsewhere / "toolfleet.toml"
    toml.write_text("lane = 'fast'\ngateway_body_seconds = 5\n")
    RunFile(pid=os.getpid(), settings={"gateway_wait_seconds": 5}).write(elsewhere)
    for _ in range(2):
        assert load_settings(gateway_max_header_bytes=1).lane == "fast"

    gone = " is no setting any more, and changes nothing: "
    assert {record.message for record in caplog.records} == {
        f"TOOLFLEET_GATEWAY_STREAMS{gone}{REMOVED['gateway_streams']}.",
        f"{toml}, line 2: gateway_body_seconds{gone}{REMOVED['gateway_body_seconds']}.",
        f"TOOLFLEET_GATEWAY_WAIT_SECONDS{gone}{REMOVED['gateway_wait_seconds']}.",
        f"TOOLFLEET_GATEWAY_MAX_HEADER_BYTES{gone}{REMOVED['gateway_max_header_bytes']}.",
    }
    assert len(caplog.records) == 4


def test_a_setting_that_is_gone_is_none_of_those_that_are_there() -> None:
    """And what it names as a replacement is one."""
    assert REMOVED.keys() & Settings.model_fields.keys() == set()
    named = {name for words in REMOVED.values() for name in re.findall(r"TOOLFLEET_([A-Z_]+)", words)}
    assert {name.lower() for name in named} <= Settings.model_fields.keys()


def test_an_agent_is_told_of_a_misspelt_variable(
    env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it makes its fleet, before anything is asked."""
    monkeypatch.setattr("toolfleet_registry.config.setting_sources._warned", set())
    env("REDIS_ULR", "redis://a")
    ToolFleet("redis://b")

    assert "TOOLFLEET_REDIS_ULR is no setting, and changes nothing; did you mean TOOLFLEET_REDIS_URL?" in caplog.text


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("default_timeout", "environment"),
        ("lane", "environment"),
        ("module_services", "file"),
        ("audit_kept", "file"),
        ("redis_url", "up"),
        ("log_level", "default"),
    ],
)
def test_each_setting_has_an_origin(elsewhere: Path, env: Any, name: str, source: str) -> None:
    """The first of the sources that sets it, with its place."""
    (elsewhere / "toolfleet.toml").write_text('lane = "slow"\naudit_kept = 7\n\n[module_services]\na = "http://a"\n')
    RunFile(pid=os.getpid(), settings={"redis_url": "redis://up", "lane": "fast"}).write(elsewhere)
    env("DEFAULT_TIMEOUT", "4")
    env("LANE", "fast")
    env("LOG_LEVEL", "")  # as if it were not there
    places = {
        "default_timeout": "TOOLFLEET_DEFAULT_TIMEOUT",
        "lane": "TOOLFLEET_LANE",
        "module_services": f"{elsewhere / 'toolfleet.toml'}, line 4",
        "audit_kept": f"{elsewhere / 'toolfleet.toml'}, line 2",
        "redis_url": str(elsewhere / ".toolfleet"),
        "log_level": "",
    }

    assert origin_of(name, start=elsewhere) == SettingOrigin(source, places[name])  # type: ignore[arg-type] # a row of the table


def test_a_broken_file_is_named(elsewhere: Path) -> None:
    """With the place of the mistake."""
    (elsewhere / "toolfleet.toml").write_text("redis_url = redis://a")
    assert error_of().startswith("toolfleet.toml: Invalid value (at line 1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"redis_url": "http://me:s3cret@host"},
        {"redis_url": ["redis://me:s3cret@host"]},
        {"redis_url": "redis://[me:s3cret@host"},
        {"broker_url": {"url": "amqp://me:s3cret@host"}},
        {"module_services": {"git": "ftp://me:s3cret@host"}},
        {"module_services": {"git": "http://me:s3cret/@host"}},
        {"module_services": ["http://me:s3cret@host"]},
        {"module_services": {"git": ["http://me:s3cret@host"]}},
        {"module_services": '{"git": "http://me:s3cret@host"'},
        {"redis_url": "redis://me:s3cret@host", "visibility_timeout": 1},
        {"redis_url": "redis://me:s3cret@host", "no_such_setting": 1},
    ],
)
def test_a_password_is_in_no_error(wrong: dict[str, Any]) -> None:
    """Not in the sentence, and not in the traceback of what caused it."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**wrong)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_a_password_is_not_in_the_text_of_the_settings() -> None:
    """They may be logged."""
    secret = "redis://me:s3cret@host"
    settings = load_settings(redis_url=secret, broker_url=secret, module_services={"git": "http://me:s3cret@host"})
    assert settings.redis_url == secret
    assert "s3cret" not in f"{settings!r} {settings}"


@pytest.mark.parametrize(
    ("given", "broker", "seconds"),
    [
        ({}, None, 60),  # workers renew their leases
        ({"visibility_timeout": 2}, None, 2),
        ({"redis_url": "redis://a"}, "redis://a", 60),  # one URL is enough
        ({"broker_url": "rediss://h"}, "rediss://h", 60),
        ({"redis_url": "sentinel://h", "sentinel_master": "m"}, "sentinel://h", 60),
        ({"redis_url": "redis://a", "broker_url": "amqp://h"}, "amqp://h", 7200),  # it has no leases
        ({"broker_url": "amqp://h", "visibility_timeout": 1}, "amqp://h", 1),  # and no such time-out
    ],
)
def test_a_lease_is_short_where_workers_renew_it(given: dict[str, Any], broker: str | None, seconds: int) -> None:
    """A minute by our own transport, which is for Redis."""
    settings = load_settings(**given)
    assert (settings.broker, settings.lease_seconds) == (broker, seconds)
    assert settings.has_redis_broker is not str(broker).startswith("amqp")


STOCK_PARTS = (
    "{}: kombu's transport is for RabbitMQ only, and this fleet's broker is Redis. First end all workers of the version "
    "before, by SIGTERM: they finish the calls that they run, and the others stay in their queues. Then take the setting "
    "away everywhere, and start this version."
)


@pytest.mark.parametrize(
    ("read", "value", "urls"),
    [
        (load_settings, "0", {"REDIS_URL": "redis://a"}),
        (load_settings, "false", {}),  # the Redis of `up`
        (load_environment, "off", {"REDIS_URL": "redis://a", "BROKER_URL": "unix:///b"}),
        (load_declared, "No", {"REDIS_URL": "redis://a"}),
    ],
)
def test_a_redis_without_the_fleets_transport_ends_every_start(
    env: Any, read: Any, value: str, urls: dict[str, str]
) -> None:
    """Whatever reads the settings: in one sentence with the steps to move, before anything is connected to."""
    for name, url in urls.items():
        env(name, url)
    env("FAST_TRANSPORT", value)

    with pytest.raises(SettingsError) as told:
        read()
    assert str(told.value) == STOCK_PARTS.format("TOOLFLEET_FAST_TRANSPORT")


def test_so_does_a_line_of_the_file_or_a_running_up_of_before(elsewhere: Path) -> None:
    """It is named where it was written."""
    (elsewhere / "toolfleet.toml").write_text('redis_url = "redis://a"\nfast_transport = false\n')
    assert error_of() == STOCK_PARTS.format(f"{elsewhere / 'toolfleet.toml'}, line 2")

    (elsewhere / "toolfleet.toml").unlink()
    RunFile(pid=os.getpid(), settings={"redis_url": "redis://up", "fast_transport": False}).write(elsewhere)
    assert error_of() == STOCK_PARTS.format(str(elsewhere / ".toolfleet"))


@pytest.mark.parametrize(
    ("value", "broker"), [("1", "redis://a"), ("true", "redis://a"), ("0", "amqp://h"), ("1", "amqp://h")]
)
def test_a_removed_setting_that_changes_nothing_ends_no_start(
    env: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: str, broker: str
) -> None:
    """It is told once what holds in its place."""
    monkeypatch.setattr("toolfleet_registry.config.setting_sources._warned", set())
    env("FAST_TRANSPORT", value)
    env("BROKER_URL", broker)
    for _ in range(2):
        assert load_settings(redis_url="redis://a").broker == broker

    (told,) = [record.message for record in caplog.records]
    assert told == (
        "TOOLFLEET_FAST_TRANSPORT is no setting any more, and changes nothing: calls travel by the fleet's own transport "
        "at Redis, and by kombu's at RabbitMQ; remove it."
    )


def test_a_removed_setting_may_stand_in_the_file_and_come_from_a_running_up(elsewhere: Path) -> None:
    """Of the version before: unknown names are errors there."""
    (elsewhere / "toolfleet.toml").write_text('redis_url = "redis://a"\nfast_transport = true\n')
    RunFile(pid=os.getpid(), settings={"fast_transport": True, "lane": "slow"}).write(elsewhere)

    assert (load_settings().redis_url, load_settings().lane) == ("redis://a", "slow")


@pytest.mark.parametrize("name", ["module_networks", "gateway_trusted_proxies"])
def test_networks_are_cidrs(name: str, env: Any) -> None:
    """Comma-separated or JSON; what is no network is refused, and named."""
    env(name.upper(), "10.0.0.0/8, fd00::/8")
    assert getattr(load_settings(), name) == ("10.0.0.0/8", "fd00::/8")
    env(name.upper(), '["10.0.0.7"]')
    assert getattr(load_settings(), name) == ("10.0.0.7",)
    env(name.upper(), "10.0.0.1/8")
    assert "'10.0.0.1/8' is no network" in error_of()
