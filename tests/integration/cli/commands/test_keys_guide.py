"""The guide to keys and tokens, as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

from support.command import Run
from support.documents import ROOT, programs
from toolfleet_gateway.auth.identity import STATUSES
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.settings import load_settings

GUIDE = "docs/guides/permissions.md"


def test_its_commands_work(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    """In the order in which they stand, with the id of the key that was made."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    create, listing, revoke = re.findall(r"^\$ toolfleet (keys .*)$", (ROOT / GUIDE).read_text(), re.MULTILINE)
    text = run(*shlex.split(create)).out.strip()
    key_id = text.split("_")[1]
    shown = run(*shlex.split(listing)).out

    assert re.fullmatch(r"tfk_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", text)
    assert all(word in shown for word in (key_id, "ada", "research", "in 30 d", "the shop's bot"))
    assert run(*shlex.split(re.sub(r"revoke \S+", f"revoke {key_id}", revoke))).code == 0


def test_its_settings_are_read(elsewhere: Path) -> None:
    (elsewhere / "toolfleet.toml").write_text(programs(GUIDE)["oauth"])
    settings = load_settings()

    assert settings.oauth_issuer == "https://login.example/realms/acme"
    assert settings.gateway_resource == "https://tools.example/fleet"
    assert settings.oauth_claim_names["user_id"] == "email"


def test_it_leaves_nothing_out() -> None:
    """Each setting of keys and tokens, and each refusal, has its row."""
    text = (ROOT / GUIDE).read_text()
    settings = [name for name in GatewaySettings.model_fields if name.startswith("oauth_")]

    assert settings
    assert [name for name in settings if f"`{name}`" not in text] == []
    assert [problem for problem, status in STATUSES.items() if not re.search(rf"{status} \| .*`{problem}`", text)] == []
