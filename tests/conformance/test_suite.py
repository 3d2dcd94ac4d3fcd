"""A few scenarios of the conformance suite at a gateway, and how their results are counted; `make conformance` runs all."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.packages import FOLDER, NODE, SuiteMissing, installed
from conformance.results import Report, read
from conformance.stage import gateway_endpoint
from conformance.suite import run_scenario
from support.waiting import PATIENCE_SECONDS

_INSTALL_SECONDS = 60


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The everything-server at a gateway."""
    try:
        installed(seconds=_INSTALL_SECONDS)
    except SuiteMissing as exc:
        pytest.skip(f"The conformance suite cannot be had: {exc}")
    with gateway_endpoint(tmp_path_factory.mktemp("fleet")) as url:
        yield url


@pytest.mark.parametrize(
    ("scenario", "revision"),
    [
        ("tasks-request-state-removal", "2026-07-28"),  # a call becomes a task, and is taken back
        ("tools-call-mixed-content", "2025-11-25"),  # several kinds of content, over a session
    ],
)
def test_a_gateway_passes_a_scenario(endpoint: str, tmp_path: Path, scenario: str, revision: str) -> None:
    """With a real server of the protocol as a module behind the fleet no check fails."""
    report = run_scenario("server", scenario, revision, ["--url", endpoint], tmp_path / "results")

    assert report.failed == []
    assert report.counts["SUCCESS"] > 0


def test_the_typescript_sdks_client_calls(endpoint: str) -> None:
    """It lists a module's tools and calls one; what else it can do `make test-all` tries."""
    program = shutil.copy(Path(__file__).with_name("sdk_client.mjs"), FOLDER)
    done = subprocess.run(
        [NODE, program, endpoint], capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "test_simple_text" in found["names"]
    assert "simple text" in found["said"]


def test_checks_are_counted_by_what_they_say(tmp_path: Path) -> None:
    """A failed check counts wherever it stands, and a scenario that left no results has failed."""
    folder = tmp_path / "server-tasks-lifecycle-2026-11-26T03-11-45-696Z"
    folder.mkdir()
    checks = [{"id": "one", "status": "SUCCESS"}, {"id": "two", "status": "FAILURE", "errorMessage": "it did not\nend"}]
    (folder / "checks.json").write_text(json.dumps(checks))

    report = Report.of("server", read(tmp_path), ["tasks-lifecycle", "ping"], seconds=1)

    assert report.failed == ["tasks-lifecycle: two: it did not end", "ping: ran: the scenario did not run to its end"]
    assert report.text().splitlines()[0] == "server: 1 passed, 2 failed, 0 skipped, 0 warned, in 2 scenarios"
