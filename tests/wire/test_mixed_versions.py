"""Agents and workers of different versions at one Redis, as they are while a fleet is updated: every call ends as it should."""

from pathlib import Path
from typing import Any

import pytest

from support.versions.mixed_fleet import mixed_fleet
from support.versions.releases import Release, here

KEY = "a secret of more than thirty-two characters"
SETTINGS: dict[str, dict[str, str]] = {
    "unsigned": {},
    "signed": {"signing_key": KEY},
}
# The others in the longer proofs: what is signed is also what is not, and more.
MODES = ["signed", *(pytest.param(mode, marks=pytest.mark.slow) for mode in SETTINGS if mode != "signed")]
EXPECTED: dict[str, Any] = {
    "echo": [True, None, "done"],
    "fail": [False, "module_error", "unknown"],
    "fail_once": [False, "module_error", "unknown"],
    "turn_away": [False, "busy", "none"],
    "garble": [False, "invalid_response", "unknown"],
    "garble_read": [False, "invalid_response", "unknown"],
    "brief_nap": [False, "timed_out", "unknown"],
    "limited": [True, None, "done"],
    "limited again": [False, "rate_limited", "none"],
    "not allowed": [False, "permission_denied", "none"],
    "echoed": {"text": "tu-whit ✓", "number": 1.5, "nothing": None},
    "many": list(range(20)),
    "large": 400_000,
    "repeated": [True, None, "done", True],
    "conflict": [False, "conflict", "none"],
    "cancelled": [False, "cancelled", "unknown"],
    "said": ["half"],
    "talked": [True, None, "done"],
    "job": ["completed", "job.completed", True, "completed"],
    "dead": ["owls.brief_nap", "owls.garble", "owls.garble_read", "owls.turn_away"],
}
# The agent decides which modules a user reaches who names none, and its worker alike.
NAMES_NO_MODULES = {"agent": [True, None, "done"], "worker": [False, "permission_denied", "none"]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("newer", ["agent", "worker"])
def test_a_newer_agent_and_an_older_worker_do_as_two_alike(
    earlier: Release, own_redis: str, tmp_path: Path, newer: str, mode: str
) -> None:
    """Whichever side is updated first, each kind of call ends as it would between two of one version."""
    agent, worker = (here(), earlier) if newer == "agent" else (earlier, here())
    with mixed_fleet(own_redis, tmp_path, **SETTINGS[mode]) as fleet, fleet.running(worker):
        found = fleet.agent(agent)
    if newer == "agent" and "owls.fail" in found["dead"]:  # older workers try it twice, and call it exhausted then
        found["dead"].remove("owls.fail")
    assert found == EXPECTED | {"names no modules": NAMES_NO_MODULES[newer]}
