"""The command at its two doors: at Redis, and over a gateway, where it has the rights of a key."""

import asyncio
import getpass
import json
import re
import shlex

import pytest

from support.command import Run, interrupt
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway
from support.workers.dead_news import RECEIVER, maker
from toolfleet_cli.local.environment import environment_of

Line = tuple[str, str, int, str]
"""Who types what, the exit code, and a pattern of what is printed. `@name` is the text of an earlier group of that name."""

BOB_SEES, NO_TOOL = r"(?s)\A(?!.*owls\.admin_only).*owls\.echo", "There is no such tool for this caller."
ID, WHOLE_KEY = '"id": "(?P<made>[^"]+)"', '"key": "(?P<whole>[^"]+)"'
JOB = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": "c"}, "workflow_id": "flow"}
NO_ROLE = "the role '{}'".format
DOTS = [
    line
    for name in (".", "..", "''")
    for line in [
        ("olga", f"wakes drop {name}", 1, r"There is no wake-up '\.{0,2}'"),
        ("olga", f"wakes replay {name}", 1, r"There is no wake-up '\.{0,2}'"),
        ("olga", f"wakes show {name}", 1, r"There is no wake-up '\.{0,2}'"),
        ("olga", f"dead drop {name}", 1, r"There is no dead letter '\.{0,2}'"),
    ]
]
AT_BOTH: dict[str, list[Line]] = {
    "a tool is disabled by an operator, and the audit says by whom": [
        ("olga", "tools disable owls.fail_once", 0, r"\Aowls\.fail_once: disabled\n\Z"),
        ("vera", "tools list --closed", 0, r"owls\.fail_once"),
        ("-vera", "tools enable owls.fail_once", 1, rf"\A[^\n]*{NO_ROLE('operator')}"),
        ("olga", "tools enable owls.fail_once", 0, r"\Aowls\.fail_once: enabled\n\Z"),
        ("vera", "audit tail --changes --tool owls.fail_once", 0, r"success  tool_disabled  \S+  @by\n"),
        ("vera", "audit tail --changes --tool owls.fail_once", 0, r"success  tool_enabled  \S+  @by\n"),
    ],
    "a key is made, and revoked by its id or by what has leaked": [
        ("ada", "keys create --user ada --modules owls,larks --role viewer --json", 0, f"(?s)(?=.*{ID}).*{WHOLE_KEY}"),
        ("ada", "keys list", 0, "@made  ada +guest +larks, owls +viewer"),
        ("-ada", "keys create --user bob", 1, r"\A(?!tfk_)"),  # beyond the rights of the key that makes it
        ("ada", "keys revoke @whole none", 1, r"\ARevoked: 1\.\n(?!.*@whole)(?s:.*)'none'"),
        ("vera", "audit tail --changes --tool @made", 0, r"success  key_created .*\n.*success  key_revoked "),
    ],
    "dead news are replayed and dropped, one by one or all of a kind": [
        ("vera", "dead show @secret", 0, "it can be dropped only"),
        ("vera", "dead list --kind wakeup --json", 0, '"replayable": false'),
        ("olga", "dead replay @secret", 1, ""),
        ("olga", "dead replay none", 1, r"\AThere is no (such )?dead letter"),
        ("olga", "dead replay @first", 0, r"\ADue again: 1\.\n\Z"),
        ("olga", "dead replay @second a=1", 2, ""),
        (
            "olga",
            "dead replay --all --kind wakeup",
            1,
            r"(?s)Due again: 1\..*'@secret' are a call with sensitive arguments",
        ),
        ("vera", "wakes list --json", 0, "(?s)@first.*@second|@second.*@first"),
        ("olga", "dead replay @early", 0, r"\ADue again: 1\.\n\Z"),
        ("olga", "dead drop @secret --kind call", 1, ""),
        ("olga", "dead drop --all --kind wakeup", 0, r"\ADropped: 1\.\n\Z"),
        ("olga", "dead drop --all --kind webhook", 0, r"\ADropped: 1\.\n\Z"),
        ("olga", "dead drop @late", 1, "'@late'"),
        ("vera", "audit tail --changes --outcome success -n 1 --json", 0, '(?=.*"tool": "webhook").*"count": 1'),
        ("vera", "audit tail --changes --outcome success -n 2", 0, "(dead_letters_dropped.*\n.*){2}"),
    ],
    "wake-ups are shown, tried and dropped; a dead one is named with where to look": [
        ("vera", "wakes show job-1", 0, r"(?s)The owls are counted\..*given up|given up.*The owls are counted\."),
        ("vera", "wakes show job-none", 1, "'job-none'"),
        (
            "olga",
            "wakes replay job-1 job-none drop-3",
            1,
            "(?s)Due now: 1.*'job-1' is dead.*dead-letters replay job-1.*'job-none'",
        ),
        ("-vera", "wakes drop drop-1", 1, NO_ROLE("operator")),
        ("olga", "wakes drop drop-1 drop-1", 0, r"\ADropped: 1\.\n\Z"),
        ("olga", "wakes drop drop-1 job-1", 1, "(?s)'drop-1'.*'job-1'"),
        ("vera", "wakes list --about about-drops --json", 0, r"(?s)\A(?!.*drop-1).*drop-2"),
        *DOTS,  # a client, or a proxy, would take such a name out of the path, and all that there is would be meant
        ("olga", "wakes drop --all --about ABOUT-drops", 0, r"\ADropped: 2\.\n\Z"),
        ("vera", "audit tail --changes -n 1", 0, r"success  wakeups_dropped .*@by"),
        ("vera", "audit tail --changes --outcome refused", 0, "refused  wakeup_dropped "),
        ("olga", "dead drop job-1", 0, r"\ADropped: 1\.\n\Z"),
    ],
}
OVER_A_GATEWAY: dict[str, list[Line]] = {
    "tools are those that the key may use": [
        ("bob", "tools list", 0, BOB_SEES),
        ("bob", "tools show owls.echo --json", 0, r'\A\{\n(?s:.*)"name": "owls\.echo"'),
        ("bob", "tools show owls.ekho", 1, rf"\A{NO_TOOL} Did you mean"),
        ("bob", "tools search echo --json", 0, r'\A\[\n  \{(?s:.*?)"name": "owls\.echo"'),
        ("bob", "tools search xyzzy", 0, r"\ANo tool of this caller"),
    ],
    "a call is made, and what fails or is refused is exit code 1": [
        ("bob", "call owls.echo text=hoo number:=3 --json", 0, r'"result": \{\s+"text": "hoo",\s+"number": 3'),
        ("bob", "call owls.fail --json", 1, '"error_code": "module_error"'),
        ("bob", "call owls.admin_only", 1, rf"\Aowls\.admin_only: {NO_TOOL}"),
    ],
    "the status is for viewers, with the gateway in the place of Redis": [
        ("vera", "status", 0, r"\AGateway      @url\n(?s:.*)Lane fast    1 worker"),
        ("vera", "status --json", 0, r'"workers": \[\s+[{"]'),
        ("bob", "status", 1, NO_ROLE("viewer")),
    ],
    "errors are for viewers": [
        ("vera", "tools list --errors", 0, r"\AEverything is served as it stands\.\n\Z"),
        ("bob", "tools list --errors", 1, ""),
    ],
    "modules are for all to list, and for operators to change": [
        ("bob", "modules list --json", 0, r'\A\[\n  \{(?s:.*)"module": "owls"'),
        ("olga", "modules refresh", 0, "owls"),
        ("bob", "modules refresh", 1, NO_ROLE("operator")),
        ("olga", "modules add barn http://127.0.0.1:9 --slow", 0, r"\AModule barn is in the slow lane, at \S+:9\.\n"),
        ("olga", "modules remove barn --drain 2", 0, "in 2 s are ended"),
    ],
    "jobs are those of the key's user": [
        ("eve", "jobs list --json", 0, "(?s)@one.*@two|@two.*@one"),
        ("eve", "jobs show @one", 0, "waiting"),
        ("bob", "jobs show @one", 1, ""),
        ("eve", "jobs cancel @one", 0, r"\AThe job is cancelled\.\n\Z"),
        ("eve", "jobs cancel --workflow flow", 0, r"\ACancelled: 1\.\n\Z"),
    ],
    "jobs of all users are for operators": [
        ("vera", "jobs list --json --all-users", 0, "@one"),
        ("vera", "jobs list --json --user eve", 0, "@two"),
        ("vera", "jobs show @one --all-users", 0, "waiting"),
        ("vera", "jobs cancel --user eve", 1, ""),
        ("bob", "jobs cancel --user eve", 1, ""),
        ("olga", "jobs cancel @one --all-users", 0, r"\AThe job is cancelled\.\n\Z"),
        ("olga", "jobs cancel --user eve", 0, r"\ACancelled: 1\.\n\Z"),
        ("vera", "audit tail --changes -n 2 --user olga", 0, r"success  job_cancelled .*\n.*success  jobs_cancelled "),
    ],
    "dead letters of calls are shown, replayed and dropped": [
        ("ada", "call owls.garble --json", 1, '"call_id": "(?P<call>[^"]+)"'),
        ("vera", "dead list --kind call --json", 0, '"id": "@call"'),
        ("vera", "dead show @call", 0, r"owls\.garble"),
        ("olga", "dead replay @call --json", 1, '"call_id": "(?P<again>[^"]+)"'),
        ("olga", "dead drop @again none", 1, r"Dropped: 1\.\n(?s:.*)no dead letter 'none'"),
        ("olga", "dead replay --all", 2, ""),
    ],
}


def known_before(story: str, door: str, gateway: KeyedGateway, bed: TestBed) -> dict[str, str]:
    """Make what a story is about; returns its names."""
    by = {"Redis": f"{getpass.getuser()}  command line", "a gateway": f"olga  key {gateway.key_id('olga')}"}[door]
    known, make = {"url": gateway.url, "by": by}, maker(bed.redis_url)
    if story.startswith("wake-ups"):
        for name in ("drop-1", "drop-2", "drop-3"):
            make(name, conversation_id="about-drops")
        make("job-1", dead=True)
    elif story.startswith("dead news"):
        known |= {name: f"{name}-{len(door)}" for name in ("first", "second", "secret")}
        known |= {name: f"{number}{len(door)}@{RECEIVER}" for number, name in enumerate(("early", "late"))}
        for name, kind in {"secret": "call", "early": "registry", "late": "registry"}.items():
            make(known[name], dead=True, kind=kind)
        for name in ("first", "second"):
            make(known[name], dead=True)
    elif story.startswith("jobs"):
        known |= {name: asyncio.run(gateway.post("eve", "/jobs", JOB)).json()["job_id"] for name in ("one", "two")}
    return known


@pytest.mark.parametrize(
    ("story", "door"),
    [
        *((story, door) for story in AT_BOTH for door in ("Redis", "a gateway")),
        *((one, "a gateway") for one in OVER_A_GATEWAY),
    ],
)
def test_the_command_does_the_same_at_each_door(
    run: Run, run_as: Run, gateway: KeyedGateway, bed: TestBed, story: str, door: str
) -> None:
    """A line whose name begins with a dash is of rights, which only keys have."""
    known = known_before(story, door, gateway, bed)
    for who, words, code, pattern in (AT_BOTH | OVER_A_GATEWAY)[story]:
        if door == "Redis" and who.startswith("-"):
            continue
        for name, text in known.items():
            words, pattern = words.replace(f"@{name}", text), pattern.replace(f"@{name}", re.escape(text))  # noqa: PLW2901 - filled in
        if door == "Redis":
            ended = run(*shlex.split(words), env=environment_of(bed.settings))
        else:
            ended = run_as(who.lstrip("-"), *shlex.split(words))
        found = re.search(pattern, ended.out + ended.err)

        assert (ended.code, bool(found)) == (code, True), (words, pattern, ended)
        assert found is not None
        known |= found.groupdict()


def test_host_and_port_name_the_gateway(run: Run, gateway: KeyedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tools list --host H --port P` asks it, with the key of the environment; without a key it says what is missing."""
    host, port = gateway.gateway.address
    without = run("tools", "list", "--host", host, "--port", port)
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["bob"].text)
    found = run("tools", "list", "--host", host, "--port", port, "--json")

    assert (without.code, without.err) == (1, "The gateway needs a key: set TOOLFLEET_GATEWAY_KEY.\n")
    assert (found.code, len(json.loads(found.out))) == (0, 9)


def test_a_changed_tool_of_a_pinned_module_is_approved(run_as: Run, bed: TestBed) -> None:
    """What differs is shown as from the registry, and its digest may be named; then an earlier version comes back."""
    definition = bed.modules[0].definitions[1]
    before = dict(definition)
    pinned = run_as("olga", "tools", "pin", "owls")
    definition.update(description="Sleeps.", version="2.0")
    run_as("olga", "modules", "refresh")
    shown, pending = run_as("vera", "tools", "diff", "owls.nap"), run_as("vera", "tools", "diff", "--json", "owls.nap")
    (found,) = json.loads(pending.out)["pending"]
    unknown = run_as("vera", "tools", "diff", "larks")
    approved = run_as("olga", "tools", "approve", "owls.nap", "--digest", found["digest"])
    unpinned = run_as("olga", "tools", "pin", "--undo", "owls")

    def versions() -> dict[str, tuple[str, bool]]:
        listed = json.loads(run_as("vera", "tools", "show", "--versions", "owls.nap", "--json").out)
        return {each["spec"]["description"]: (each["version"], each["is_in_force"]) for each in listed}

    first = versions()
    back = run_as("olga", "tools", "rollback", "owls.nap", first["nap"][0])
    second, forgotten = versions(), run_as("olga", "tools", "forget", "owls.nap")
    definition.clear()
    definition.update(before)
    run_as("olga", "modules", "refresh")

    assert ("owls.nap" in pinned.out, "-nap\n    +Sleeps." in shown.out, forgotten.code) == (True, True, 0)
    assert found["fields"]["description"] == {"registered": "nap", "offered": "Sleeps."}
    assert (unknown.code, unknown.err) == (1, "Unknown module: larks\n")
    assert approved.out.startswith("owls.nap: approved with digest sha256:")
    assert unpinned.out == "owls: not pinned any more\n"
    assert first["Sleeps."] == ("2.0", True)
    assert back.out == f"owls.nap: version {first['nap'][0]} is in force\n"
    assert (second["nap"][1], second["Sleeps."][1]) == (True, False)


def test_the_audit_is_followed(run_as: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and changes come as they end, each once."""
    monkeypatch.setattr("toolfleet_cli.commands.audit._PAUSE_SECONDS", 0)
    run_as("olga", "tools", "enable", "owls.garble_read")
    steps = [lambda: run_as("olga", "tools", "disable", "owls.none"), interrupt]
    ended = run_as("vera", "audit", "tail", "-n", "1", "--follow", "--json", steps=steps)
    lines = [json.loads(line) for line in ended.out.splitlines()]

    assert [(each["change"], each["outcome"]) for each in lines] == [
        ("tool_enabled", "success"),
        ("tool_disabled", "refused"),
    ]
    assert (ended.code, any("is_begun" in each for each in lines)) == (130, False)
