"""What Flower knows of the fleet when it starts: no key, wherever that is set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolfleet_cli.local.environment import flower_environment, no_secrets
from toolfleet_registry.settings import load_settings

KEY = "a secret of more than thirty-two characters"
CODE = """
import ctypes, os
from toolfleet_tasks import app
settings = app.flower.settings
print(settings.redis_url, settings.signing_keys, settings.gateway_key, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""
FILE = f'redis_url = "redis://127.0.0.1:1/7"\nsigning_key = "{KEY}"\ngateway_key = "planted"\nrequire_signed_results = true\n'


@pytest.mark.skipif(sys.platform != "linux", reason="there is no prctl")
@pytest.mark.parametrize("variable", [None, "TOOLFLEET_SIGNING_KEY", "toolfleet_signing_key"])
def test_flower_has_and_reads_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """Neither from the environment of what starts it, nor from a `toolfleet.toml` above; and it hides what it knows."""
    (tmp_path / "toolfleet.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLFLEET_REDIS_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, KEY)
    env = {**os.environ, **flower_environment(load_settings())}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True, timeout=60
    )

    assert ended.stdout.split() == ["redis://127.0.0.1:1/7", "()", "None", "0"]
    assert [name for name, value in env.items() if KEY in value] == []


def test_nothing_is_left_of_secrets_in_a_childs_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child without a key is not asked for signatures either, whatever the environment of what starts it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", KEY)
    monkeypatch.setenv("TOOLFLEET_REQUIRE_SIGNED_RESULTS", "true")
    for name, value in no_secrets().items():
        monkeypatch.setenv(name, value)

    settings = load_settings()
    assert (settings.signing_key, settings.require_signed_results) == (None, False)
