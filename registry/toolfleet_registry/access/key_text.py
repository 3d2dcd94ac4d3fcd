"""Makes and reads the text of an API key: `tfk_<id>_<secret><checksum>`, in letters and digits.

Secret scanners find it by its prefix and its length, and verify it by the checksum. Only its SHA-256 is stored, without
a salt and without a slow hash: these protect passwords that can be guessed, and 256 random bits cannot.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field

BEGIN = "tfk_"
"""What every key begins with."""

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_CHARACTERS = 12
_SECRET_CHARACTERS = 43  # of 62 each: 256 bits
_CHECKSUM_CHARACTERS = 6  # for 32 bits
_ID = re.compile(rf"[0-9A-Za-z]{{{_ID_CHARACTERS}}}")
_TEXT = re.compile(
    rf"({BEGIN}([0-9A-Za-z]{{{_ID_CHARACTERS}}})_[0-9A-Za-z]{{{_SECRET_CHARACTERS}}})([0-9A-Za-z]{{{_CHECKSUM_CHARACTERS}}})"
)


@dataclass(frozen=True, slots=True)
class KeyText:
    """The full text of a key, which is shown once, and its public id."""

    id: str
    text: str = field(repr=False)

    @property
    def digest(self) -> str:
        """The digest that is stored instead of the key: 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def has_digest(self, stored: str) -> bool:
        """Return whether the stored digest is this key's, comparing in constant time."""
        return hmac.compare_digest(self.digest, stored)


def new_key_text() -> KeyText:
    """Make a new random key."""
    key_id, secret = _random(_ID_CHARACTERS), _random(_SECRET_CHARACTERS)
    body = f"{BEGIN}{key_id}_{secret}"
    return KeyText(key_id, body + _checksum(body))


def read_key_text(text: str) -> KeyText | None:
    """The key, or `None` if it is none: it is mistyped, or cut short."""
    match = _TEXT.fullmatch(text)
    if match is None or _checksum(match[1]) != match[3]:
        return None
    return KeyText(match[2], text)


def shown_id(text: str) -> str:
    """Return a key's id in a form that is safe to log: the id of a whole key, or `?` for a text that is no id."""
    read = read_key_text(text)
    if read is not None:
        return read.id
    return text if _ID.fullmatch(text) else "?"


def _random(count: int) -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(count))


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_CHARACTERS):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
