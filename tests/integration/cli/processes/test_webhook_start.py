"""Processes of a fleet whose webhooks cannot be signed."""

import pytest

from support.command import Run


def test_a_fleet_with_webhooks_and_no_secret_does_not_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker and beat say in one sentence what is missing."""
    monkeypatch.setenv("TOOLFLEET_REGISTRY_WEBHOOKS", "http://127.0.0.1:1/tools?token=s3cret")
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", "redis://127.0.0.1:1")
    for command in ("worker", "beat"):
        ended = run(command)
        assert ended.code
        assert "TOOLFLEET_REGISTRY_WEBHOOKS needs TOOLFLEET_REGISTRY_WEBHOOKS_SECRET" in ended.err
        assert "s3cret" not in ended.out + ended.err
