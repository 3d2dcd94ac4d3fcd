"""What is built of this tree."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels and the sdists of both distributions."""
    out = tmp_path_factory.mktemp("built")
    for folder in (ROOT, ROOT / "modules"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", out],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    return out
