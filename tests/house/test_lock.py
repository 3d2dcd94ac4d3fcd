"""The lock file names what is installed, with hashes, and nothing about where it comes from."""

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
# Their tests bring them along, in an environment of their own, by digests of their own.
ELSEWHERE = {"claude-agent-sdk": "tests/clients/claude/requirements.lock"}


def test_the_lock_has_no_address() -> None:
    """It works with whatever package index a machine is set up for."""
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted-host", LOCK)


def test_every_package_is_pinned_with_hashes() -> None:
    """Each requirement is one version, with at least one SHA-256."""
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.strip())

    assert len(blocks) > 50
    for block in blocks:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==[^ ]+( ; .+)? \\\n", block), block
        assert "--hash=sha256:" in block


def test_the_lock_has_everything_the_project_asks_for() -> None:
    """No dependency of the two distributions, of any extra, is missing from the lock, or from the one that has it by itself."""
    projects = [tomllib.loads((ROOT / each / "pyproject.toml").read_text())["project"] for each in (".", "modules")]
    wanted = chain(*([*each["dependencies"], *chain(*each["optional-dependencies"].values())] for each in projects))
    names = {re.split(r"[ \[<>=;]", line, maxsplit=1)[0] for line in wanted} - {"toolfleet", "toolfleet-sdk"}
    elsewhere = [(ROOT / each).read_text() for each in ELSEWHERE.values()]
    locked = {name for text in (LOCK, *elsewhere) for name in re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE)}

    assert names <= locked
