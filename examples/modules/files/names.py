"""What a file may be called, and how a user is called in a key of the store and in the database."""

import mimetypes
import re
import string
import unicodedata
from urllib.parse import quote, unquote

from modules.files.errors import FileRefused

MAX_NAME_BYTES = 200  # file systems take 255, for those who save a file under its name elsewhere
_MAX_USER_CHARS = 200  # as it is called here or there
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-")
_READABLE = "".join(char for char in string.printable if char.isprintable() and char != "%")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}", re.ASCII)
_ANY_MEDIA = "application/octet-stream"


def checked_name(name: str) -> str:
    """`name` in the one spelling that is stored. Raises `FileRefused` for what is not a plain, visible name."""
    line, name = visible_line(name), unicodedata.normalize("NFC", name)
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise FileRefused(f"A file's name has 1 to {MAX_NAME_BYTES} bytes.")
    if "/" in name or "\\" in name or name.startswith("."):
        raise FileRefused(f"{name!r} is not a file's name: there are no folders, and it must not start with a dot.")
    if name != line:
        raise FileRefused(f"{name!r} is not a file's name: it has invisible characters, or spaces around it.")
    return name


def visible_line(text: str) -> str | None:
    """`text` in one spelling, without spaces around it; `None` if that is nothing, or has what nobody sees in it."""
    line = unicodedata.normalize("NFC", text).strip()
    # Category C: control, invisible and half characters. Z without the space: line breaks and odd spaces.
    return line if line and all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in line) else None


def owner_of(user_id: str | None) -> str:
    """The user as the database has them: itself if it is readable ASCII, else escaped; two users never share one."""
    if not user_id:
        raise FileRefused("Files belong to a user, and this call has no user_id.")
    owner = quote(user_id, safe=_READABLE, errors="surrogatepass")
    if max(len(owner), len(_folder_of(user_id))) > _MAX_USER_CHARS:
        raise FileRefused("The user_id is too long to keep files for.")
    return owner


def user_of(owner: str) -> str:
    """The user_id that `owner_of` took."""
    return unquote(owner, errors="surrogatepass")


def key_of(user_id: str, file_id: str) -> str:
    """Where a content lies: below a folder that no other user has."""
    return f"content/{_folder_of(user_id)}/{file_id}"


def media_type_of(name: str, claimed: str | None) -> str:
    """What the sender says without its parameters, if it is a media type; else what the name suggests."""
    plain = (claimed or "").partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(plain) and plain != _ANY_MEDIA:
        return plain
    return mimetypes.guess_type(name)[0] or _ANY_MEDIA


def _folder_of(user_id: str) -> str:
    """What is not plain is escaped, capitals included: some file systems take `Bob` and `bob` for one name."""
    raw = user_id.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"!{byte:02x}" for byte in raw)
