"""Classes of the operators' own: which are imported, with what they are made, and what is said of those that cannot be had."""

import sys
from pathlib import Path

import pytest

from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.config.agent_profile import AgentProfile, OwnMiddlewareSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

PROGRAM = """
made = []

class Fine:
    def __init__(self, level=1):
        if level > 3:
            raise ValueError("level is 3 at most")
        self.level = level
        made.append(self)
    async def __call__(self, call, proceed):
        return await proceed(call)

class Plain:
    def __call__(self, call, proceed): ...

function = print
"""


@pytest.fixture(autouse=True)
def programs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ownfine.middleware`, a program that raises, and one in no trusted namespace."""
    for name, text in {
        "ownfine/middleware": PROGRAM,
        "ownfine/broken": "raise SystemExit(3)",
        "ownfiner": PROGRAM,
    }.items():
        path = elsewhere / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(elsewhere))


def own(runs_in: str = "worker", trusted: str = "ownfine, elsewhere.at") -> OwnClasses:
    settings = load_settings(trusted_middleware_namespaces=trusted)
    return OwnClasses(settings, runs_in="agent" if runs_in == "agent" else "worker")


def spec(name: str, **parameters: object) -> OwnMiddlewareSpec:
    return OwnMiddlewareSpec.model_validate({"name": name, **parameters})


def test_a_class_is_made_once_with_its_parameters() -> None:
    """For each entry that says the same; other parameters make another one."""
    classes = own()
    one = classes.made(spec("ownfine.middleware:Fine", level=2))

    assert one.level == 2
    assert classes.made(spec("ownfine.middleware:Fine", level=2, tools=["a.b"])) is one
    assert classes.made(spec("ownfine.middleware:Fine")) is not one


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("ownfiner:Fine", {}, "in none of the namespaces in trusted_middleware_namespaces"),
        ("os.path:join", {}, "in none of the namespaces"),
        ("ownfine.broken:Fine", {}, "cannot be imported: SystemExit: 3"),
        ("ownfine.none:Fine", {}, "cannot be imported: ModuleNotFoundError"),
        ("ownfine.middleware:None_", {}, "cannot be imported: AttributeError"),
        ("ownfine.middleware:function", {}, "is no class"),
        ("ownfine.middleware:Fine", {"level": 4}, "refuses its parameters: ValueError: level is 3 at most"),
        ("ownfine.middleware:Fine", {"levels": 4}, "refuses its parameters: TypeError"),
        ("ownfine.middleware:Plain", {}, "has no method `async def __call__`"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_clause(
    name: str, parameters: dict[str, object], words: str, elsewhere: Path
) -> None:
    """Of the settings with the place, before anything starts; of a stored profile as its fault."""
    profile = AgentProfile.model_validate({"middleware": [{"name": name, **parameters}]})
    assert words in (own().fault(profile) or "")
    assert own("agent").fault(profile) is None  # it stands in workers

    (elsewhere / "toolfleet.toml").write_text(
        'trusted_middleware_namespaces = "ownfine"\n[agents.a]\n[[agents.a.middleware]]\n'
        + "\n".join(f"{key} = {value!r}" for key, value in {"name": name, **parameters}.items())
    )
    settings = load_settings()
    with pytest.raises(SettingsError, match=r"line 3: agents, at a\.middleware\.0: ") as refused:
        OwnClasses(settings, runs_in="worker").check(settings)
    assert words in str(refused.value)
    OwnClasses(settings, runs_in="agent").check(settings)


@pytest.mark.parametrize("folder", [".", "deeper/still"])
def test_a_class_is_found_next_to_the_settings(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Also from a folder below, and after all other places: what is installed is never hidden."""
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(elsewhere)])
    (elsewhere / "toolfleet.toml").write_text("")
    for name in ("ownbeside", "json"):
        (elsewhere / f"{name}.py").write_text(PROGRAM)
    (elsewhere / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(elsewhere / folder)

    classes = own(trusted="ownbeside")

    assert classes.made(spec("ownbeside:Fine")).level == 1
    assert sys.path[-1] == str(elsewhere)
    assert sys.path.count(str(elsewhere)) == 1
