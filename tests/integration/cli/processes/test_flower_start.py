"""What Flower knows of the fleet when it starts: no key, wherever that is set."""

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from toolfleet_cli.local.environment import SECRETS, flower_environment, no_secrets
from toolfleet_registry.settings import Settings, load_settings

KEY = "a secret of more than thirty-two characters"
CODE = """
import ctypes, os
from toolfleet_tasks import app
settings = app.flower.settings
print(settings.redis_url, settings.signing_keys, settings.gateway_key, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""
FILE = f'redis_url = "redis://127.0.0.1:1/7"\nsigning_key = "{KEY}"\ngateway_key = "planted"\nrequire_signed_results = true\n'


@pytest.mark.skipif(sys.platform != "linux", reason="there is no prctl")
def test_flower_has_and_reads_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from the environment of what starts it, nor from a `toolfleet.toml` above; and it hides what it knows."""
    (tmp_path / "toolfleet.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLFLEET_REDIS_URL", raising=False)
    for variable in ("OWL", "toolfleet_signing_key", "TOOLFLEET_SIGNING_KEY"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, KEY)
            env = {**os.environ, **flower_environment(load_settings())}
        assert [name for name, value in env.items() if KEY in value and name != "OWL"] == []
    said = subprocess.check_output([sys.executable, "-c", CODE], env=env, text=True)

    assert said.split() == ["redis://127.0.0.1:1/7", "()", "None", "0"]


WEBHOOKS = 'core_url = "http://127.0.0.1:1"\n[registry_webhooks]\n"http://127.0.0.1:1/a" = ["removed"]\n'
APPROVALS = '[[approvals.webhooks]]\nurl = "http://127.0.0.1:1/a"\nsecret = "NAMED"\n'


@pytest.mark.parametrize("file", [FILE, "require_signed_results = true\n", WEBHOOKS, APPROVALS])
def test_nothing_is_left_of_secrets_in_a_childs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Nor of what is wrong without them, wherever either is set: a child that has no use for them starts."""
    (tmp_path / "toolfleet.toml").write_text(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", KEY)
    monkeypatch.setenv("TOOLFLEET_CORE_SECRET", f"whsec_{b64encode(b'c' * 32).decode()}")
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS_SECRET", f"whsec_{b64encode(b'r' * 32).decode()}")
    assert load_settings().signing_key == KEY
    assert bool(load_settings().approvals.webhooks) == (file == APPROVALS)
    for name, value in no_secrets().items():
        monkeypatch.setenv(name, value)

    names = {*SECRETS, "approvals", "registry_webhooks", "module_headers"}  # whatever is left out of the table
    assert load_settings().model_dump(include=names) == Settings.model_construct().model_dump(include=names)
