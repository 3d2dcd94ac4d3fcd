"""The guide to agents, as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

from support.command import Run
from support.documents import ROOT, programs
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.settings import load_settings

GUIDE = "docs/guides/permissions.md"


@pytest.fixture
def folder(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the guide's settings, and its classes in `acme.middleware`."""
    found = programs(GUIDE)
    (elsewhere / "toolfleet.toml").write_text(found["profile"])
    (elsewhere / "acme").mkdir()
    (elsewhere / "acme" / "middleware.py").write_text(found["worker-side"] + found["agent-side"])
    monkeypatch.syspath_prepend(str(elsewhere))
    return elsewhere


@pytest.mark.usefixtures("folder")
def test_its_classes_are_made() -> None:
    settings = load_settings()
    OwnClasses(settings, runs_in="worker").check(settings)
    OwnClasses(settings, runs_in="agent").check(settings)

    assert settings.agents["production"].permission_at_most == "user"
    assert settings.agents["research"].mode == "subagent"


@pytest.mark.usefixtures("folder")
def test_its_commands_work(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    """In the order in which they stand, each printing what stands below it."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    session = re.search(r"```console\n(\$ toolfleet agents put.*?)```", (ROOT / GUIDE).read_text(), re.DOTALL)
    assert session is not None
    for words, printed in re.findall(r"\$ toolfleet (.*)\n((?:[^$].*\n)*)", session[1]):
        ended = run(*shlex.split(words))
        assert ended.code == 0, ended
        assert printed in ended.out
