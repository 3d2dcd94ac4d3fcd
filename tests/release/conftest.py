"""What the checks of a release start from: artefacts in `dist/`, and three environments that have them."""

import shutil
from collections.abc import Mapping

import pytest

from release.artefacts import FOLDERS, ROOT, Distribution, build, listing
from release.environments import Environment, install

DIST = ROOT / "dist"
_SAID = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Distribution]:
    """Both, built into `dist/`, where `contents.txt` lists what is in them."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = {name: build(name, DIST, tmp_path_factory.mktemp("built")) for name in FOLDERS}
    listings = [listing(artefact) for each in built.values() for artefact in (each.sdist, each.wheel)]
    (DIST / "contents.txt").write_text("\n".join(listings))
    request.config.stash[_SAID] = [text.partition("\n")[0] for text in listings]
    return built


@pytest.fixture(scope="session")
def agent(distributions: Mapping[str, Distribution], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return _environment("toolfleet", distributions, tmp_path_factory)


@pytest.fixture(scope="session")
def module(distributions: Mapping[str, Distribution], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return _environment("toolfleet-sdk", distributions, tmp_path_factory)


@pytest.fixture(scope="session")
def worker(distributions: Mapping[str, Distribution], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return _environment("toolfleet[worker,sql]", distributions, tmp_path_factory)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was built."""
    for line in terminalreporter.config.stash.get(_SAID, []):
        terminalreporter.write_line(line)


def _environment(
    requirement: str, distributions: Mapping[str, Distribution], folders: pytest.TempPathFactory
) -> Environment:
    return install(requirement, distributions, folders.mktemp("env") / "venv", folders.mktemp("empty"))
