"""How receivers of webhooks are set, and what is refused."""

import json

import pytest

from toolfleet_cli.local.environment import environment_of
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

SECRET = "whsec_" + "b3dsc293bHNvd2xzb3dsc293bHNvd2xzb3dsc293bHM="
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("http://a/x, https://b", {"http://a/x": (), "https://b": ()}),
        ('["http://a/x"]', {"http://a/x": ()}),
        (
            '{"http://a/x": ["changed", "removed"], "http://b": []}',
            {"http://a/x": ("changed", "removed"), "http://b": ()},
        ),
        ("", {}),
    ],
)
def test_urls_are_read_from_the_environment(
    text: str, read: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With commas, as a list, or each with its kinds of event; a child process reads the same."""
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS", text)
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS_SECRET", SECRET)
    settings = load_settings()
    assert settings.registry_webhooks == read
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    assert load_settings().registry_webhooks == read
    assert "a/x" not in repr(settings)
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("webhooks", "secret", "why"),
    [
        ("http://s3cret/x", None, "TOOLFLEET_REGISTRY_WEBHOOKS needs TOOLFLEET_REGISTRY_WEBHOOKS_SECRET"),
        ("http://s3cret/x", "whsec_s3cret", "must be whsec_ and base64"),
        ("ftp://s3cret/x", SECRET, "must be http:// or https:// URLs with a host"),
        ('{"http://s3cret/x": ["eaten"]}', SECRET, "a list with any of registered, changed"),
        ('{"http://s3cret/x": "changed"}', SECRET, "a list with any of registered, changed"),
        ('["http://s3cret/x", 1]', SECRET, "must be URLs, or JSON"),
        ("{s3cret", SECRET, "must be JSON"),
        (json.dumps([f"http://s3cret/{number}" for number in range(21)]), SECRET, "at most 20 URLs"),
    ],
)
def test_what_cannot_work_is_refused_at_start(
    webhooks: str, secret: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, which repeats neither a URL nor the secret."""
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS", webhooks)
    if secret is not None:
        monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS_SECRET", secret)
    with pytest.raises(SettingsError, match=why) as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


def test_the_cores_secret_is_not_the_receivers() -> None:
    """A receiver with it could wake the core."""
    with pytest.raises(SettingsError, match="another one than TOOLFLEET_CORE_SECRET"):
        load_settings(core_secret=SECRET, registry_webhooks_secret=SECRET)
