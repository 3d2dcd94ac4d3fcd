"""Where users' files live: one folder a user under one root, and no way out of it.

Names are checked, and every file is opened relative to its user's opened folder without following links, so that
neither a name nor a link that somebody put there leads elsewhere. Readers see a file whole or not at all.
"""

import contextlib
import errno
import os
import secrets
import stat
import string
import unicodedata
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modules.service import ToolError

_CLONE = Path(__file__).resolve().parents[2]
_MAX_NAME_BYTES = 200  # file systems take 255
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # non-blocking: a named pipe would wait for its writer
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class FileSettings(BaseSettings):
    """`FILE_MANAGER_ROOT` and the limits; the modules that share users' files read the same ones."""

    model_config = SettingsConfigDict(env_prefix="FILE_MANAGER_", frozen=True, env_ignore_empty=True)

    root: Path = _CLONE / ".toolfleet" / "files"
    max_bytes: int = Field(default=2**20, gt=0)
    """Of one file: far more than a model can read."""
    max_files: int = Field(default=200, gt=0)
    """Of one user."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as a listing shows it."""

    name: str
    bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class UserFiles:
    """One user's files, by plain names. What cannot be done is a `ToolError`."""

    folder: Path
    max_bytes: int
    max_files: int

    @classmethod
    def of(cls, user_id: str | None, settings: FileSettings) -> "UserFiles":
        """The files of `user_id`, who need not have any yet."""
        return cls(settings.root / _folder_name(user_id), settings.max_bytes, settings.max_files)

    def write(self, name: str, data: bytes) -> bool:
        """Create or replace a file in one step. Returns whether it is new."""
        name = _checked(name)
        if len(data) > self.max_bytes:
            raise ToolError(f"{name!r} would have {len(data)} bytes; {self.max_bytes} are allowed.")
        with contextlib.suppress(FileExistsError):  # what exists is judged when it is opened
            self.folder.mkdir(mode=0o700, parents=True)
        with self._opened() as folder:
            present = {entry.name for entry in _entries(folder)}
            if name not in present and len(present) >= self.max_files:
                raise ToolError(f"There are {len(present)} files, the most allowed; delete one first.")
            _replace(name, data, folder)
        return name not in present

    def read(self, name: str) -> bytes:
        """A file's content."""
        name = _checked(name)
        try:
            with self._opened() as folder, open(name, "rb", opener=_opener(folder)) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ToolError(f"{name!r} is not a file.")
                if status.st_size > self.max_bytes:
                    raise ToolError(f"{name!r} has {status.st_size} bytes; {self.max_bytes} are allowed.")
                return file.read(self.max_bytes)
        except FileNotFoundError:
            raise ToolError(f"There is no file {name!r}; list the files to see which there are.") from None
        except OSError as exc:
            raise _refusal(name, exc) from exc

    def entries(self) -> list[FileEntry]:
        """All files, sorted by name."""
        try:
            with self._opened() as folder:
                return sorted(_entries(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> bool:
        """Remove a file. Returns whether there was one."""
        name = _checked(name)
        try:
            with self._opened() as folder:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise _refusal(name, exc) from exc
        return True

    @contextmanager
    def _opened(self) -> Generator[int]:
        try:
            folder = os.open(self.folder, _OPEN_FOLDER)
        except NotADirectoryError:  # a link, or something else that nobody here has made
            raise ToolError("Your folder is not one that this module made; ask its operator.") from None
        try:
            yield folder
        finally:
            os.close(folder)


def _folder_name(user_id: str | None) -> str:
    """A folder's name that no other user has: what is not plain is escaped, capitals included.

    Some file systems take `Bob` and `bob`, or two spellings of `é`, for one name.
    """
    if not user_id:
        raise ToolError("Files belong to a user, and this call has no user_id.")
    raw = user_id.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02x}" for byte in raw)
    if len(name) > _MAX_NAME_BYTES:
        raise ToolError("The user_id is too long to keep files for.")
    return name


def _checked(name: str) -> str:
    """`name` in the one spelling that is stored. Raises `ToolError` for what is not a plain, visible name."""
    name = unicodedata.normalize("NFC", name)
    if not name or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        raise ToolError(f"A file's name has 1 to {_MAX_NAME_BYTES} bytes.")
    if "/" in name or "\\" in name or name.startswith("."):
        raise ToolError(f"{name!r} is not a file's name: there are no folders, and it must not start with a dot.")
    # Category C: control, invisible and half characters. Z without the space: line breaks and odd spaces.
    if name != name.strip() or any(unicodedata.category(char)[0] in "CZ" and char != " " for char in name):
        raise ToolError(f"{name!r} is not a file's name: it has invisible characters, or spaces around it.")
    return name


def _entries(folder: int) -> Iterator[FileEntry]:
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(ToolError, FileNotFoundError):  # not ours, or deleted a moment ago
                if entry.is_file(follow_symlinks=False) and _checked(entry.name) == entry.name:
                    status = entry.stat(follow_symlinks=False)
                    yield FileEntry(entry.name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _opener(folder: int) -> Callable[[str, int], int]:
    return lambda name, _flags: os.open(name, _OPEN_FILE, dir_fd=folder)


def _replace(name: str, data: bytes, folder: int) -> None:
    draft = f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(draft, _CREATE_FILE, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError as exc:
        raise _refusal(name, exc) from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)


def _refusal(name: str, exc: OSError) -> ToolError:
    """Of what lies there under this name and is no file: a link, a folder, a socket."""
    if exc.errno in {errno.ELOOP, errno.EISDIR, errno.EPERM, errno.ENXIO}:
        return ToolError(f"{name!r} is not a file.")
    return ToolError(f"{name!r} cannot be used now ({errno.errorcode.get(exc.errno or 0, 'unknown error')}).")
