"""How channels of approvals are set, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolfleet_cli.local.environment import environment_of
from toolfleet_gateway.hooks.approval_routes import approval_hook_routes
from toolfleet_registry.config.approvals.channel_secrets import channel_secret
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.client.fleet import ToolFleet

SECRET = "whsec_" + "b3ds" * 8
TOML = """
[[approvals.webhooks]]
url = "https://erp.example/approvals?token=s3cret"
secret = "NOTICES"
events = ["asked"]

[approvals.approvers.erp]
secret = "ERP"
user_id = "boss"
permission = "admin"
"""


def test_channels_are_read_from_the_file_and_the_environment(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process reads the same; no URL is shown."""
    (elsewhere / "toolfleet.toml").write_text(TOML)
    settings = load_settings()
    (webhook,), approver = settings.approvals.webhooks, settings.approvals.approvers["erp"]
    assert (webhook.secret, webhook.events) == ("NOTICES", ("asked",))
    assert (approver.secrets, approver.user_id, approver.permission) == (("ERP",), "boss", "admin")
    assert "s3cret" not in repr(settings)
    (elsewhere / "toolfleet.toml").unlink()
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    assert load_settings().approvals == settings.approvals


def _webhooks(*more: dict[str, Any]) -> dict[str, Any]:
    return {"webhooks": [{"url": "http://s3cret/x", "secret": "A", **each} for each in more]}


def _approvers(**names: str) -> dict[str, Any]:
    return {"approvers": {name: {"secret": secret, "user_id": "s3cret"} for name, secret in names.items()}}


@pytest.mark.parametrize(
    ("approvals", "why"),
    [
        (_webhooks({"url": "ftp://s3cret/x"}), "must be an http:// or https:// URL with a host"),
        (_webhooks({"events": ["eaten"]}), "asked"),
        (_webhooks({}, {}), "each webhook has a URL of its own"),
        (_webhooks(*({"url": f"http://s3cret/{number}"} for number in range(21))), "at most 20 webhooks"),
        (_approvers(a="A", b="A"), "each approver has secrets of its own"),
        ({**_webhooks({}), **_approvers(a="A")}, "each approver has secrets of its own"),
        ({"approvers": {"a": {"user_id": "s3cret"}}}, "secrets"),
        ({"approvers": {"a b": {"secret": "A", "user_id": "s3cret"}}}, "an approver cannot be named"),
        ("{s3cret", "must be JSON"),
    ],
)
def test_what_cannot_work_is_refused_at_start(
    elsewhere: Path, approvals: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, which repeats no URL."""
    text = approvals if isinstance(approvals, str) else json.dumps(approvals)
    monkeypatch.setenv("TOOLFLEET_APPROVALS", text)
    with pytest.raises(SettingsError, match=why) as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


def test_a_secret_that_signs_nothing_is_refused(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, or no secret of Standard Webhooks: its name is said, and its value is not."""
    with pytest.raises(SettingsError, match="ERP is not there"):
        channel_secret("ERP", {})
    monkeypatch.setenv("ERP", "s3cret")
    with pytest.raises(SettingsError, match="The secret ERP must be whsec_") as caught:
        channel_secret("ERP", {})
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("ERP", SECRET)
    assert channel_secret("ERP", {}) == SECRET


def test_two_approvers_do_not_sign_alike(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that could not tell them apart does not start."""
    for name in ("ONE", "TWO"):
        monkeypatch.setenv(name, SECRET)
    settings = load_settings(redis_url="redis://127.0.0.1:1", approvals=_approvers(one="ONE", two="TWO"))
    with pytest.raises(SettingsError, match="the approver two signs"):
        approval_hook_routes(ToolFleet(settings=settings), settings)
