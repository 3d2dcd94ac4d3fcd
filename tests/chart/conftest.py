"""The environment of the chart's tests, with Helm's library and the schemas of the Kubernetes API."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import ROOT

LOCK = Path(__file__).parent / "environment" / "requirements.lock"
FOLDER = ROOT / ".cache" / "chart"
_INSTALL_SECONDS = 400
_TAMPERED = "Hash mismatch"


@pytest.fixture(scope="session")
def python() -> Path:
    """Its interpreter; the packages are those of the lock file, by their digests."""
    uv = str(Path(sys.executable).with_name("uv"))
    interpreter = FOLDER / "bin" / "python"
    made = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(FOLDER)]
    install = [uv, "pip", "install", "--quiet", "--python", str(interpreter), "--require-hashes", "-r", str(LOCK)]
    try:
        for command in (made, install):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
            assert _TAMPERED not in done.stderr, done.stderr
            if done.returncode != 0:
                pytest.skip(f"Helm's library cannot be installed: {done.stderr.strip()[:200]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"Helm's library has not come in {_INSTALL_SECONDS} s")
    return interpreter
