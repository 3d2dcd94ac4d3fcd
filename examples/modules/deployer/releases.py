"""Releases: copies of projects that never change, named by what they hold."""

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from modules.deployer.plan import Declaration, DeployRefused, Kind, Plan

DRAFT = ".draft-"

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # non-blocking: a named pipe would wait for its writer
_CHUNK_BYTES = 2**18
_MAX_DEPTH = 30
_MB = 2**20


class Release(BaseModel):
    """What is known of a release; its files lie in `releases/<release_id>/`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    release_id: str
    kind: Kind
    files: int
    bytes: int
    created_at: float
    declaration: Declaration | None = None


def take_release(project: int, plan: Plan, releases: Path, *, max_files: int, max_mb: int) -> Release:
    """Copy the files of an open project that `plan` names, unless the same have been copied before.

    Links, hidden files and what is no file are left out. Raises `DeployRefused`.
    """
    releases.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = releases / f"{DRAFT}{secrets.token_hex(8)}"
    copy = _Copy(plan, max_files=max_files, max_bytes=max_mb * _MB)
    try:
        folder = os.open(plan.folder or ".", _OPEN_FOLDER, dir_fd=project)
        try:
            copy.folder(folder, draft)
        finally:
            os.close(folder)
        release_id = copy.digest.hexdigest()[:16]
        # In one step, and under a name that says what is in it: if it is there already, it is the same.
        if not (releases / release_id).exists():
            _settle(draft)  # or after a power cut the name might stand for less
            draft.rename(releases / release_id)
            _sync(releases)
    except OSError as exc:
        raise DeployRefused(f"The project changed while it was copied, or cannot be read ({exc.strerror}).") from exc
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Release(
        release_id=release_id,
        kind=plan.kind,
        files=copy.files,
        bytes=copy.bytes,
        created_at=time.time(),
        declaration=plan.declaration,
    )


def _settle(folder: Path) -> None:
    """Have the disk hold what was written, all at once: it is quicker than file by file."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Copy:
    """One copy under way: what is copied is what is counted and digested, whatever the source does meanwhile."""

    def __init__(self, plan: Plan, *, max_files: int, max_bytes: int) -> None:
        self.digest = hashlib.sha256(plan.model_dump_json().encode())
        self.files = 0
        self.bytes = 0
        self._max_files = max_files
        self._max_bytes = max_bytes

    def folder(self, source: int, target: Path, *, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise DeployRefused(f"The project has more than {_MAX_DEPTH} folders in each other.")
        target.mkdir(mode=0o755)
        for name in self._names(source):
            with contextlib.suppress(FileNotFoundError):  # removed a moment ago
                mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    self._note(f"folder {name!r}")
                    inner = os.open(name, _OPEN_FOLDER, dir_fd=source)
                    try:
                        self.folder(inner, target / name, depth=depth + 1)
                    finally:
                        os.close(inner)
                    self._note("end")
                elif stat.S_ISREG(mode):
                    self._file(name, source, target / name)

    def _names(self, source: int) -> list[str]:
        names: list[str] = []
        with os.scandir(source) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    names.append(entry.name)
                if len(names) > self._max_files:
                    raise self._too_many()
        return sorted(names)

    def _file(self, name: str, source: int, target: Path) -> None:
        with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=source), "rb") as original:
            status = os.fstat(original.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            self.files += 1
            if self.files > self._max_files:
                raise self._too_many()
            is_program = bool(status.st_mode & stat.S_IXUSR)
            content = hashlib.sha256()
            with target.open("xb") as copy:
                while data := original.read(_CHUNK_BYTES):
                    self.bytes += len(data)
                    if self.bytes > self._max_bytes:
                        raise DeployRefused(
                            f"The project has more than {self._max_bytes // _MB} MB; deploy what is built."
                        )
                    content.update(data)
                    copy.write(data)
            target.chmod(0o555 if is_program else 0o444)
            self._note(f"file {name!r} {is_program} {content.hexdigest()}")

    def _too_many(self) -> DeployRefused:
        return DeployRefused(f"The project has more than {self._max_files} files; deploy what is built.")

    def _note(self, words: str) -> None:
        self.digest.update(f"{words}\n".encode("utf-8", "surrogateescape"))
