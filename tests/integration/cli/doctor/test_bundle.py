"""The bundle of a bug report has what helps, and neither a secret nor anybody's data."""

import json
import zipfile
from pathlib import Path

import pytest
from redis import Redis

from support.command import Run
from support.module_server import ModuleServer, serve
from support.owls import echo
from toolfleet_cli.doctor.bundle import HIDDEN, Redaction
from toolfleet_registry.settings import Settings

SECRETS = ("a-signing-key-of-32-letters-and-more", "another-key-of-a-gateway", "token-of-the-environment")
PERSONAL = ("ada.lovelace@example.com", "4111 1111 1111 1111", "mother's maiden name", "user-4711", "conversation-0815")
_LOG = """\
2026-11-26T14:20:08.964138Z [info     ] tools_changed                  [toolfleet_registry.catalog.x] module=owls tools={'added': ['a']}
2026-11-26T14:20:09.179458Z [warning  ] call_refused                   [toolfleet_tasks.x] user=user-4711 module=owls error="of ada.lovelace@example.com"
{"event": "tool_call_ended", "module": "owls", "user": "user-4711", "result": "mother's maiden name", "seconds": 2, "level": "info"}
Traceback (most recent call last):
  File "/usr/lib/site-packages/celery/app/trace.py", line 453, in trace_task
ValueError: mother's maiden name
"""


def planted(settings: Settings) -> None:
    """A message that waits with personal data in its arguments, and data in other kinds of keys that have any."""
    waiting = {"tool_name": "owls.echo", "arguments": {"to": PERSONAL[0], "card": PERSONAL[1]}, "user_id": PERSONAL[3]}
    with Redis.from_url(str(settings.redis_url)) as redis:
        redis.lpush(settings.keys.queue("tools.owls"), json.dumps(waiting))
        redis.xadd(settings.keys.audit, {"user": PERSONAL[3], "conversation": PERSONAL[4]})
        redis.hset(settings.keys.job("1"), mapping={"owner": PERSONAL[3], "result": PERSONAL[2]})
        redis.set(settings.keys.result(PERSONAL[4]), PERSONAL[2], ex=60)


@pytest.mark.usefixtures("no_workers")
def test_nothing_that_was_planted_is_in_it(
    redis_url: str, run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Redis, in arguments, in the environment, in a URL and in the logs."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", SECRETS[0])
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", SECRETS[1])
    monkeypatch.setenv("SOME_API_TOKEN", SECRETS[2])
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": f"http://ada:{SECRETS[2]}@127.0.0.1:1"}))
    planted(Settings())
    logs = elsewhere / ".toolfleet" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-fast.log").write_text(_LOG + f"nobody knows {SECRETS[0]}\n")
    ended = run("doctor", "--json", "--canary-seconds", "0.2", "--bundle", "report.zip")

    with zipfile.ZipFile(elsewhere / "report.zip") as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    whole = "\n".join([*texts, *texts.values(), ended.out, ended.err])
    assert [secret for secret in (*SECRETS, *PERSONAL) if secret in whole] == []
    assert set(texts) == {"versions.json", "settings.json", "examination.json", "logs/worker-fast.log"}
    assert json.loads(texts["settings.json"])["signing_key"] == {"value": "(hidden)", "from": "environment"}
    assert json.loads(texts["versions.json"])["packages"]["celery"]
    queues = json.loads(texts["examination.json"])["facts"]["queues"]["queues"]
    assert [(queue["queue"], queue["waiting"]) for queue in queues] == [("tools.owls", 1)]
    assert json.loads(texts["examination.json"])["facts"]["keys"]["by_rule"]


@pytest.mark.usefixtures("no_workers")
def test_what_modules_say_is_not_in_it(
    redis_url: str, run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an error nor a description, nor why a tool is closed; whoever runs the doctor is shown errors all the same."""
    sick, well = ModuleServer(PERSONAL[2]), ModuleServer("larks")
    well.add("sing", echo, description=PERSONAL[0], required_permission=PERSONAL[3])
    with serve(sick), serve(well):
        services = {
            "owls": sick.url.replace("://", f"://{PERSONAL[4]}:{SECRETS[2]}@"),
            "larks": well.url,
        }
        monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
        monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps(services))
        run("modules", "refresh")
        ended = run("doctor", "--canary-seconds", "0.2", "--bundle", "report.zip")

    with zipfile.ZipFile(elsewhere / "report.zip") as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    whole = "\n".join([*texts, *texts.values()])
    assert [one for one in (*SECRETS, *PERSONAL) if one in whole] == []
    assert PERSONAL[2] in ended.out
    facts = json.loads(texts["examination.json"])["facts"]["manifests"]
    assert [(one["module"], one["error"]) for one in facts["troubles"]] == [("owls", None)]
    assert facts["closed"] == ["larks.sing"]


def test_of_a_log_only_harmless_lines_are_kept() -> None:
    """Time, level, event and some fields; of a traceback the places in code."""
    kept = Redaction([]).log(_LOG.splitlines()).splitlines()

    assert kept == [
        "2026-11-26T14:20:08.964138Z [info] tools_changed module=owls",
        "2026-11-26T14:20:09.179458Z [warning] call_refused module=owls",
        '{"event": "tool_call_ended", "module": "owls", "seconds": 2, "level": "info"}',
        "  File celery/app/trace.py:453 trace_task",
        "(2 lines left out)",
    ]


def test_a_secret_is_replaced_wherever_it_stands() -> None:
    """Also inside of other texts, and where another one begins like it."""
    redaction = Redaction(["abcd", "abcdefgh", "x"])

    assert redaction.value({"a abcdefgh": ["xabcdx", 1, None]}) == {f"a {HIDDEN}": [f"x{HIDDEN}x", 1, None]}
