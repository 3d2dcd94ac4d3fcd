"""What `[hosts.NAME]` and `toolfleet host openapi` say of a document: a host is built of it, or one clear error."""

from pathlib import Path
from typing import Any

import pytest

from toolfleet_cli.hosting.hosts import auth_of, named_host, openapi_host
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost
from toolfleet_registry.config.host_settings import OpenApiSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings, load_settings

SECRET = "planted-secret-0123456789"


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.mark.parametrize(
    ("name", "spec", "said"),
    [
        ("birds", {"document": "missing.json"}, "There is no document"),
        ("birds", {"document": "birds.json", "base": "ftp://owls"}, "no URL of http or https"),
        ("birds", {"document": "birds.json", "base": "http://ada:word@owls"}, "a password in its URL"),
        ("birds", {"document": "birds.json", "base": "http://owls/?a=b"}, "has a query"),
        ("birds", {"document": "birds.json", "auth": {"key": SECRET}}, "has no ${SECRET}"),
        ("birds", {"document": "birds.json", "auth": {"key": "${NONE}"}}, "NONE is not there"),
        ("birds", {"document": "birds.json", "secrets": ("NONE",)}, "NONE is not there"),
        ("birds", {"document": "http://127.0.0.1:1/x", "auth": {"key": "${NONE}"}}, "needs a base"),
        ("birds", {"document": "http://ada:word@owls/x"}, "a password in its URL"),
        ("birds", {"document": "birds.json", "headers": {"a b": "c"}}, "cannot send the header 'a b'"),
        ("birds", {"document": "birds.json", "headers": {"Host": "owls"}}, "cannot send the header 'Host'"),
        ("birds", {"document": "birds.json", "headers": {"X-Owl": "${NONE}"}}, "NONE is not there"),
        ("birds", {"document": "http://127.0.0.1:1/x", "headers": {"X-Owl": "${NONE}"}}, "needs a base"),
        ("no name", {"document": "birds.json"}, "no name for a module"),
        ("local", {"document": "birds.json"}, "no name for a module"),
    ],
)
def test_what_cannot_be_served_is_one_clear_error(
    tmp_path: Path, settings: Settings, name: str, spec: dict[str, Any], said: str
) -> None:
    (tmp_path / "birds.json").write_text("{}")

    with pytest.raises(SettingsError) as caught:
        openapi_host(settings, name, OpenApiSpec(**spec), folder=tmp_path)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_options_of_credentials_are_read() -> None:
    """A scheme, and what is sent for it; what has no scheme is refused without being shown."""
    assert auth_of(["key=${A}", "login=ada:${B}=="]) == {"key": "${A}", "login": "ada:${B}=="}
    for text in (SECRET, f"={SECRET}"):
        with pytest.raises(SettingsError) as caught:
            auth_of([text])
        assert SECRET not in str(caught.value)


def test_the_file_of_settings_describes_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its document lies beside it, and so do the files of its secrets."""
    (tmp_path / "birds.json").write_text("{}")
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "toolfleet.toml").write_text(
        '[hosts.birds]\ndocument = "birds.json"\nauth = { key = "${BIRD_KEY}" }\nslashes = ["find.path"]\n'
        '[secrets.BIRD_KEY]\nfile = "key"\n'
    )
    monkeypatch.chdir(tmp_path)
    host = named_host(load_settings(), "birds", start=tmp_path)

    assert isinstance(host, OpenApiHost)
    assert host.name == "birds"
    assert host._options.slashes == ("find.path",)
