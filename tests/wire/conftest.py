"""What the tests of mixed versions share: the releases that are named in `VERSIONS`, built out of the history."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.versions.releases import NoHistory, Release, build, versions
from toolfleet_cli.local.redis_server import redis_server


@pytest.fixture(scope="session", params=versions(), ids=lambda version: f"wire {version.number}")
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """An earlier version."""
    try:
        return build(request.param, tmp_path_factory.mktemp("release"))
    except NoHistory as exc:
        pytest.skip(f"mixed versions are not tested: this copy has no commit {request.param.commit[:7]} ({exc})")


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[str]:
    """A Redis for one fleet alone."""
    with redis_server(tmp_path / "redis") as url:
        yield url
