"""The store of artifacts: each kind keeps the same promises."""

import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from support.servers.s3_server import KEYS, S3Server, s3_server
from toolfleet_registry.artifact_store import ArtifactStore
from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway, SettingsError
from toolfleet_registry.settings import Settings


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    if request.param == "folder":
        return ArtifactStore(f"file://{tmp_path}/artifacts", "f")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in {**KEYS, "AWS_ENDPOINT": server.url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    return ArtifactStore(f"s3://{server.make_bucket()}/some/prefix", "f")


async def names_in(store: ArtifactStore, seconds: float) -> list[str]:
    return sorted([name async for page in store.older_than(seconds) for name in page])


async def test_an_object_is_read_in_parts(store: ArtifactStore) -> None:
    """From a byte to before another one; what lies beyond its end is left out."""
    await store.put("a.1.0", b"0123456789")

    assert [await store.get("a.1.0", *part) for part in ((0, 10), (2, 4), (8, 20), (4, 4))] == [
        b"0123456789",
        b"23",
        b"89",
        b"",
    ]


async def test_an_object_is_never_written_twice(store: ArtifactStore) -> None:
    """A second writer is refused, and the first one's bytes stay."""
    await store.put("a.1.0", b"first")
    with pytest.raises(ArtifactStoreAway):
        await store.put("a.1.0", b"second")

    assert await store.get("a.1.0", 0, 9) == b"first"


async def test_what_is_deleted_is_gone(store: ArtifactStore) -> None:
    """Many at once, or one; names that are not there do no harm."""
    for name in ("a.1.0", "b.1.0"):
        await store.put(name, b"owl")

    assert [await store.delete(names) for names in (["a.1.0", "b.1.0"], ["a.1.0"])] == [True, True]
    with pytest.raises(ArtifactMissing):
        await store.get("a.1.0", 0, 3)


async def test_old_objects_are_listed(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By when they were written, in parts: each is a request of its own."""
    monkeypatch.setattr("toolfleet_registry.artifact_store._LISTED", 2)
    for name in ("a.1.0", "b.1.0", "c.1.0"):
        await store.put(name, b"owl")

    assert await names_in(store, 3600) == []
    assert await names_in(store, -3600) == ["a.1.0", "b.1.0", "c.1.0"]
    assert len([page async for page in store.older_than(-3600)]) > 1


async def test_what_a_writer_has_left_is_listed_and_deleted(tmp_path: Path) -> None:
    """Of a writer that was killed: the library that writes it hides it from lists and does not delete it."""
    store = ArtifactStore(f"file://{tmp_path}", "f")
    await store.put("a.1.0", b"owl")
    (folder,) = (tmp_path / "toolfleet-artifacts").iterdir()
    for name in ("b.1.0#1", "b.1.0#2", "c.1.0#1"):
        (folder / name).write_bytes(b"ow")

    assert await names_in(store, -3600) == ["a.1.0", "b.1.0", "b.1.0", "c.1.0"]
    assert await names_in(store, 3600) == []
    assert await store.delete(["b.1.0"])
    assert sorted(each.name for each in folder.iterdir()) == ["a.1.0", "c.1.0#1"]


async def test_a_refused_name_is_said(tmp_path: Path) -> None:
    """Not as an error: the store is there, and others can be deleted."""
    store = ArtifactStore(f"file://{tmp_path}", "f")
    (tmp_path / "toolfleet-artifacts" / "f" / "a.1.0").mkdir(parents=True)

    assert not await store.delete(["a.1.0"])


async def test_a_bucket_that_is_not_there_is_one_error(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked of it."""
    for name, value in {**KEYS, "AWS_ENDPOINT": s3.url, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    store = ArtifactStore("s3://no-such-bucket", "f")
    with pytest.raises(ArtifactStoreAway):
        await store.put("a.1.0", b"owl")
    with pytest.raises(ArtifactStoreAway):
        await names_in(store, 0)


async def test_an_object_of_another_size_is_none(store: ArtifactStore) -> None:
    """A part of what has been put in its place is not served."""
    await store.put("a.1.0", b"0123456789")

    assert await store.get("a.1.0", 0, 5, size=10) == b"01234"
    with pytest.raises(ArtifactMissing):
        await store.get("a.1.0", 0, 5, size=9)


async def test_a_fleets_objects_lie_apart(tmp_path: Path) -> None:
    """Another fleet in the same store neither reads, nor lists, nor deletes them."""
    one, other = (ArtifactStore(f"file://{tmp_path}", fleet) for fleet in ("f", "g"))
    await one.put("a.1.0", b"owl")
    await other.delete(["a.1.0"])

    assert await one.get("a.1.0", 0, 3) == b"owl"
    assert await names_in(other, -3600) == []
    with pytest.raises(ArtifactMissing):
        await other.get("a.1.0", 0, 3)


async def test_requests_that_hang_are_bounded(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads are counted, for all stores of a process."""
    monkeypatch.setattr("toolfleet_registry.artifact_store._MOST_HANGING", 0)
    with pytest.raises(ArtifactStoreAway, match="hang"):
        await store.put("a.1.0", b"owl")


def test_a_process_ends_while_a_request_hangs() -> None:
    """As on a folder whose server is gone: its thread is not waited for."""
    code = "from toolfleet_registry.artifact_store import _THREADS; import threading; _THREADS.submit(threading.Event().wait)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    """It names no path of the machine."""
    (tmp_path / "file").touch()
    store = ArtifactStore(f"file://{tmp_path}/file/artifacts", "f")
    with pytest.raises(ArtifactStoreAway) as error:
        await store.put("a.1.0", b"owl")

    assert str(tmp_path) not in str(error.value)


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    """A URL is made of it, whatever its characters mean in one; other schemes than those of stores are refused."""
    for name, quoted in (("a#b", "a%23b"), ("x?y", "x%3Fy"), ("100%25", "100%2525")):
        assert Settings(artifact_store=f"{tmp_path}/{name}").artifact_store == f"file://{tmp_path}/{quoted}"
    assert Settings(artifact_store=str(tmp_path)).artifact_store == f"file://{tmp_path}"
    with pytest.raises(ValueError, match="file://, s3://, gs://, az://"):
        Settings(artifact_store="memory://")


def test_a_store_without_its_library_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install; workers do without it, unless a store is set."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SettingsError, match=r"toolfleet\[artifacts\]"):
        ArtifactStore(f"file://{tmp_path}", "f")

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    worker = project["optional-dependencies"]["worker"]
    assert not [each for each in worker if "obstore" in each or "artifacts" in each]


def test_the_modules_name_is_reserved() -> None:
    """A fleet that has such a module is told at its start."""
    with pytest.raises(ValueError, match="artifacts"):
        Settings(module_services={"artifacts": "http://localhost:1"})


@pytest.mark.parametrize(
    "place",
    [
        "",
        " ",
        "data/artifacts",
        "~/artifacts",
        "file:",
        "file:a",
        "file://data/artifacts",
        "file:///a#b",
        "file:///a?b",
        "s3:",
        "s3://",
        "s3://k:s@b",
    ],
)
def test_a_place_that_might_be_read_in_two_ways_is_refused(place: str) -> None:
    """An empty text, or a relative path, would be in each process's current folder, and a host's name is no part of a path."""
    with pytest.raises(ValueError, match="artifact_store"):
        Settings(artifact_store=place)
