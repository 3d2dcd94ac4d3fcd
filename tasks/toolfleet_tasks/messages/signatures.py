"""Signs reports about a call, and verifies them: HMAC-SHA256 over the call's id and the text.

The signature is next to the text, in a field of its own, so that older readers see the same text as before. Unlike a
`Seal` it costs no more than the hash.
"""

import hmac
from typing import Literal

from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.signing import derived_key

SignedSubject = Literal["result", "failure", "attempt", "progress", "log", "revocation", "job end"]
"""What is signed, each with a key of its own: a call's result; that Celery has ended it; what one attempt came to; how far
it is; what it logs; that workers are to drop it. Of a job, how it has ended.
"""


class Signatures:
    """Makes and verifies the signatures of one kind. Without keys there are none, and none is asked for.

    Raises `SettingsError` when it is made with keys and the libraries for that are not installed.
    """

    __slots__ = ("_keys",)

    def __init__(self, settings: SigningSettings | None, subject: SignedSubject) -> None:
        self._keys = [derived_key(key, subject) for key in (settings.signing_keys if settings else ())]

    def of(self, call_id: str, text: str) -> str:
        """The signature, 64 hex digits; "" without a key."""
        return _hmac(self._keys[0], call_id, text) if self._keys else ""

    def verify(self, call_id: str, text: str, signature: object) -> bool:
        """Return whether one of the keys has signed this text for this call. Fails closed without a key."""
        if not isinstance(signature, str) or not signature.isascii():
            return False
        return any(hmac.compare_digest(_hmac(key, call_id, text), signature) for key in self._keys)


def _hmac(key: bytes, call_id: str, text: str) -> str:
    # The length says where the id ends. Half a character, which only a forgery has, has bytes of its own here.
    signed = f"{len(call_id)} {call_id} {text}".encode("utf-8", "surrogatepass")
    return hmac.digest(key, signed, "sha256").hex()


def after_json(text: str, signature: str) -> str:
    """JSON with its signature behind it, in blanks, which every reader of JSON ignores: four signs for two bits each.

    For what readers of other versions take no further field in.
    """
    return text + "".join(_BLANKS[int(digit, 16)] for digit in signature)


def split_json(content: str) -> tuple[str, str | None]:
    """Split the output of `after_json`; without a signature if there is no valid form of one."""
    text = content.rstrip(_SIGNS)
    blanks = content[len(text) :]
    digits = [_BLANKS.index(blanks[at : at + 2]) for at in range(0, len(blanks) - 1, 2)]
    return text, "".join(f"{digit:x}" for digit in digits) or None


_SIGNS = " \t\n\r"
_BLANKS = [first + second for first in _SIGNS for second in _SIGNS]  # by the value of a hexadecimal digit
