"""`toolfleet demo` as a person runs it: its three acts, and nothing left of them."""

import os
import subprocess
from pathlib import Path

import pytest

from support.up import COMMAND, leave_nothing


@pytest.mark.slow
def test_the_demo_plays_its_acts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its calls succeed, its site is deployed once though processes are killed, and its hosts' tools change and work."""
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    finally:
        leave_nothing(process)

    said = output.decode()
    assert process.returncode == 0, said
    assert "A program of ada's saved /tmp/plan.txt: Owls at midnight." in said
    assert "What a program of bob's saw of it at the same time: []." in said
    assert "opens it: 200, 'Build me a site about owls and deploy it'" in said
    assert "Wake-ups: 1. Deployments: 1." in said
    assert "Edition 5 was heard" in said
    assert ", 0 of them failed." in said
    assert "pets.findPets: [" in said
    assert list((tmp_path / "tmp").iterdir()) == []
