"""`toolfleet agents`, on a real Redis and on a database; and `toolfleet why`, beside a fleet and over a gateway."""

import functools
import json
from pathlib import Path

import pytest

from support.command import Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.contracts import Level
from toolfleet_registry.settings import Settings

TOML = """
[agents.reader]
tools = ["tag:reading"]
permission_at_most = "user"

[[agents.reader.middleware]]
name = "limits"
daily_limit = 5
"""


@pytest.fixture
def agents(redis_run: Run, elsewhere: Path) -> Run:
    """Runs `toolfleet agents`, with a Redis, in a folder with a `toolfleet.toml`."""
    (elsewhere / "toolfleet.toml").write_text(TOML)
    return functools.partial(redis_run, "agents")


def test_what_the_folder_says_is_stored(agents: Run, elsewhere: Path) -> None:
    """It then stands in both places, and both are shown, each with its line or its version."""
    put = agents("put", "reader", "--as", "ada")
    shown, (listed,) = json.loads(agents("show", "reader", "--json").out), json.loads(agents("list", "--json").out)

    assert (put.code, put.out.strip()) == (0, "reader: version 1 is in force.")
    assert {**listed, "notes": shown["notes"]} == shown
    places = [f"{elsewhere / 'toolfleet.toml'}, line 2", "registry, version 1"]
    assert [one["place"] for one in shown["profiles"]] == places
    assert (shown["version"], shown["permission_at_most"], shown["allowed_modules"]) == (1, "user", "*")
    assert shown["tools"] == [["tag:reading"], ["tag:reading"]]
    assert shown["profiles"][1]["by"] == "ada (command line)"
    for words in ("limits(daily_limit=5)", "tag:reading", "registry, version 1", "permission user at most"):
        assert words in agents("show", "reader").out
    assert "reader" in agents("list").out


YAML = """\
name: production-agent
mode: primary
tools:
  - "server.app.tools.file_reader"
  - "server.app.tools.execute_command"
middleware:
  - name: tool_retry
    max_retries: 3
  - name: pii
    pii_types: [email, phone]
"""


def test_a_profile_in_yaml_is_read_with_its_name(agents: Run, elsewhere: Path) -> None:
    """The name is the file's, where the command has none; another one is refused."""
    (elsewhere / "config.yaml").write_text(YAML)
    put = agents("put", "--file", "config.yaml")
    again, other, none = (agents("put", *args) for args in (
        ("production-agent", "--file", "config.yaml"), ("other", "--file", "config.yaml"), (),
    ))  # fmt: skip
    (stored,) = json.loads(agents("show", "production-agent", "--json").out)["profiles"]

    assert (put.code, put.out.strip()) == (0, "production-agent: version 1 is in force.")
    assert (again.code, other.code, none.code) == (0, 2, 2)
    assert "'server.app.tools.file_reader'" in put.err
    assert [each["name"] for each in stored["profile"]["middleware"]] == ["tool_retry", "pii"]
    assert stored["profile"]["tools"] == ["server.app.tools.file_reader", "server.app.tools.execute_command"]


NEVER = "can select no tool: a tool's name is MODULE.TOOL, as in git.status"


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("selector", "refused", "said"),
    [
        ("file_reader", True, NEVER),
        ("!file_reader", True, NEVER),
        ("git.", True, NEVER),
        (".status", True, NEVER),
        ("server.app.tools.cuont", False, "matches no tool that the fleet knows now."),
        ("server.app.tools.count", False, "did you mean owls.count?"),
        ("owls.cuont", False, "did you mean owls.count?"),
        ("!owls.cuont", False, "did you mean owls.count?"),
        ("larks.*", False, "matches no tool that the fleet knows now."),
        ("tag:reading", False, "matches no tool that the fleet knows now."),
        ("owls.*", False, ""),
        ("*count", False, ""),
        ("owls.count", False, ""),
        ("!owls.count", False, ""),
    ],
)
def test_a_selector_without_a_tool_is_refused_or_told(
    run: Run, agents: Run, elsewhere: Path, selector: str, *, refused: bool, said: str
) -> None:
    """What can never match is refused, in a file as in the settings; what matches nothing now is stored, and told."""
    form = 'tools = ["{}"]' if refused else '[[middleware]]\nname = "limits"\ndaily_limit = 3\ntools = ["{}"]'
    (elsewhere / "one.toml").write_text(form.format(selector))
    module = ModuleServer("owls")
    module.add("count", echo, effect="read")
    with serve(module):
        for command in (("add", "owls", module.url), ("list",)):  # the second asks the module
            run("modules", *command)
        put, shown = agents("put", "one", "--file", "one.toml"), agents("show", "one")
        (elsewhere / "toolfleet.toml").write_text(
            f"[agents.one]\n{form.format(selector)}".replace("[[", "[[agents.one.")
        )
        settings = agents("list")
        outputs = [put.err, settings.err] if refused else [put.err, shown.err, run("doctor").out]

    if refused:
        assert (put.code, settings.code) == (1, 2)
    for text in outputs:
        words = " ".join(text.split())
        assert said in words
        assert (f"'{selector}'" in words) == bool(said)


def test_an_earlier_version_is_put_again(agents: Run, elsewhere: Path) -> None:
    """Also after the profile was removed, and all of it is listed."""
    (elsewhere / "other.json").write_text('{"permission_at_most": "admin"}')
    agents("put", "other", "--file", "other.json")
    assert agents("remove", "other").out.strip() == "other: the registry has no profile of it any more."
    assert agents("show", "other").code == 1
    rolled = agents("rollback", "other", "1")
    versions = json.loads(agents("show", "--versions", "other", "--json").out)

    assert rolled.out.strip() == "other: version 3 is in force, which is version 1 again."
    assert [(one["version"], one["rolled_back_from"]) for one in versions] == [(3, 1), (2, None), (1, None)]
    assert [one["profile"] is None for one in versions] == [False, True, False]
    assert all(words in agents("show", "--versions", "other").out for words in ("in force, version 1 again", "removed"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", 'tools = ["git.*"]\nmodes = "all"\n', "a.toml, line 2: at modes: there is no such field."),
        (
            "a.toml",
            '[[middleware]]\nname = "limits"\n\n[[middleware]]\nname = "x"\n',
            "a.toml, line 4: at middleware.1:",
        ),
        ("a.toml", '[agents.reader]\npermission_at_most = "root"\n', "a.toml, line 2: at permission_at_most:"),
        ("a.json", '{"tools": ["git status"]}', "selects no tools"),
        ("a.yaml", "mode: primary\nmodes: all\n", "a.yaml, line 2: at modes: there is no such field."),
        ("a.yml", "middleware:\n- name: limits\n\n- name: x\n", "a.yml, line 4: at middleware.1:"),
        ("a.yaml", "agents:\n  reader:\n    permission_at_most: root\n", "a.yaml, line 3: at permission_at_most:"),
        ("a.yaml", "tools: [", "no YAML (line 1)"),
        ("a.yaml", "- 1", "a.yaml"),
        ("a.json", "[1]", "a.json"),
        ("a.json", "{", "a.json"),
        ("a.toml", "tools = [", "a.toml"),
        ("a.toml", "[agents.other]\n", "it has no agent 'reader'; there are: other."),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(agents: Run, elsewhere: Path, name: str, text: str, words: str) -> None:
    (elsewhere / name).write_text(text)
    ended = agents("put", "reader", "--file", name)

    assert ended.code == 2
    assert words in " ".join(ended.err.replace("│", " ").split())
    assert agents("show", "--versions", "reader").code == 1


def test_what_is_not_there_is_said(agents: Run) -> None:
    for words, said in {
        "show nobody": "Neither the settings nor the registry have a profile of agent 'nobody'.",
        "put nobody": "The settings here have no agent 'nobody'; there are reader.",
        "versions nobody": "no versions of agent 'nobody'",
        "rollback nobody 1": "There is no version 1 of agent 'nobody'.",
        "remove nobody": "The registry has no profile of agent 'nobody'.",
    }.items():
        ended = agents(*words.split())
        assert (ended.code, said in " ".join(ended.err.split())) == (1, True), ended


def test_changes_are_in_the_audit(agents: Run, run: Run) -> None:
    agents("put", "reader", "--as", "ada")
    agents("remove", "reader", "--as", "bob")
    agents("remove", "reader", "--as", "eve")
    lines = map(json.loads, run("audit", "tail", "--changes", "--json").out.splitlines())

    found = [(one["change"], one["tool"], one["user_id"], one["outcome"], one.get("version")) for one in lines]
    assert sorted(found, key=str) == [
        ("agent_put", "reader", "ada", "success", 1),
        ("agent_removed", "reader", "bob", "success", 2),
        ("agent_removed", "reader", "eve", "refused", None),
    ]


def test_a_database_has_them_and_redis_a_copy(
    agents: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str, elsewhere: Path
) -> None:
    url = f"sqlite:///{elsewhere / 'registry.db'}"
    monkeypatch.setenv("TOOLFLEET_REGISTRY_URL", url)
    assert agents("put", "reader").code == 0
    in_redis, in_database = (
        StoredProfiles.of(Settings(redis_url=redis_url, registry_url=where)) for where in (None, url)
    )

    assert in_redis.read() == in_database.read() != {}
    in_redis.close()
    in_database.close()


@pytest.fixture
def why(run: Run, bed: TestBed, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command, with the fleet's settings."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", bed.redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({each.name: each.url for each in bed.modules}))
    monkeypatch.setenv("TOOLFLEET_AGENTS", '{"reader": {"tools": ["owls.nap"]}}')
    return lambda *words: run("why", *words)


def test_the_rules_are_printed_in_order(why: Run) -> None:
    """With where each stands; exit code 1 if the call may not be made."""
    allowed, refused = why("owls.echo"), why("owls.echo", "--agent", "reader")

    assert (allowed.code, refused.code) == (0, 1)
    assert "owls.echo may be called." in allowed.err
    for words in ("refuses", "TOOLFLEET_AGENTS", "not among those of agent 'reader'"):
        assert words in " ".join((refused.out + refused.err).split())
    found = json.loads(why("owls.echo", "--agent", "reader", "--json").out)
    assert [rule["about"] for rule in found["rules"]][:2] == ["module", "agent"]


def test_it_is_about_a_keys_holder(why: Run, bed: TestBed) -> None:
    """By the key's id, here and over a gateway; options that contradict it are refused."""
    with keyed_gateway(bed) as gateway:
        key, asked = gateway.key_id("gus"), json.loads
        here = asked(why("owls.echo", "--key", key, "--json").out)
        there = asked(_over(gateway, why, "owls.echo", "--key", key, "--json"))
        by_options = asked(_over(gateway, why, "owls.echo", "--permission", "guest", "--modules", "owls", "--json"))

    assert here["caller"]["user_id"] == "gus"
    assert (there["reason"], here["is_allowed"]) == (here["reason"], False)
    assert by_options["is_allowed"]
    assert why("owls.echo", "--key", "nobody").code == 1
    assert why("owls.echo", "--key", key, "--user", "ada").code == 2


@pytest.mark.parametrize("permission", ["guest", "user", "owner"])
@pytest.mark.parametrize("modules", [None, "*", "owls", "crows"])
def test_one_caller_has_one_answer(why: Run, run: Run, bed: TestBed, permission: Level, modules: str | None) -> None:
    """In Python, by `call`, and by `why`: without `--modules` a guest reaches the default ones only."""
    allowed = {"allowed_modules": modules if modules in {None, "*"} else frozenset({modules})}
    caller = Caller.model_validate({"permission": permission, **allowed})
    with ToolFleet.sync(settings=bed.settings) as fleet:
        in_python = fleet.modules.explain("owls.echo", caller).is_allowed
        called = fleet.call(ToolCall(tool_name="owls.echo"), caller)
    options = ("--permission", permission, *(() if modules is None else ("--modules", modules)))
    said = run("call", "owls.echo", "--timeout", "30", "--json", *options).out
    by_command = json.loads(
        said[said.index("{\n") :]
    )  # behind what this process may log, as an earlier test has set it up
    explained = json.loads(why("owls.echo", "--json", *options).out)

    assert in_python == ((permission, modules) != ("guest", None) and modules != "crows")
    assert (called.success, by_command["success"], explained["is_allowed"]) == (in_python, in_python, in_python)
    assert by_command["error"] == called.error


def test_it_says_how_much_a_run_has_used(
    run: Run, bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`toolfleet call --run-id` counts in the run that it names, and `why --run-id` says how far that is; likewise conversations."""
    kinds = {"run_limit": 1, "thread_limit": 3}
    limits = [{"name": "tool_call_limit", "tools": ["owls.echo"], kind: most} for kind, most in kinds.items()]
    agents, named = {"brief": {"middleware": limits}}, ("owls.echo", "--agent", "brief", "--conversation-id", "talk")
    with redis_server(tmp_path / "redis") as url:
        own = TestBed(url, bed.modules, bed.folder, {"agents": agents})
        for name, value in environment_of(own.settings).items():
            monkeypatch.setenv(name, value)
        with own.worker():
            calls = [run("call", *named, "--run-id", each, "--json") for each in ("one", "one", "two")]
            unnamed = run("call", *named, "--json")
            one, three = (json.loads(run("why", *named, "--run-id", each, "--json").out) for each in ("one", "three"))

    assert [(each.code, json.loads(each.out)["error_code"]) for each in (*calls, unnamed)] == [
        (0, None),
        (1, "rate_limited"),
        (0, None),
        (1, "rate_limited"),
    ]
    assert "'run_id'" in json.loads(unnamed.out)["error"]
    used = [[rule["says"] for rule in each["rules"] if "has made" in rule["says"]] for each in (one, three)]
    assert sorted(used[0]) == [
        "Conversation 'talk' has made 2 of its 3 calls of this kind.",
        "Run 'one' has made 1 of its 1 calls of this kind.",
    ]
    assert "Run 'three' has made 0 of its 1 calls of this kind." in used[1]
    assert (one["is_allowed"], one["reason"], three["is_allowed"]) == (
        False,
        json.loads(calls[1].out)["error"],
        True,
    )


def _over(gateway: KeyedGateway, why: Run, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["olga"].text)
        return why(*words, "--url", gateway.url).out
