"""Calls that nobody can change on their way, and callers that a module can trust: HS256, by keys derived from one.

Each purpose has a key of its own (HKDF-SHA256 of the signing key), so that what a module may verify, and therefore
could forge, is worth nothing to another module, nor in a queue.
"""

import functools
import importlib.util
import math
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Literal

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_registry.names import ToolName
from toolfleet_registry.permissions import level_of_caller
from toolfleet_tasks import wire

# Ours have 101 characters. PyJWT looks at each one by itself, so nobody's garbage of a megabyte comes that far.
_LONGEST_SIGNATURE = 256
_ALGORITHM = "HS256"
_KEY_BYTES = 32  # what HS256 asks for
_MOST_MODULES = 1024  # whose keys are kept; deriving one takes some 20 µs

Purpose = Literal["call", "dead letter", "job"]
"""What is sealed."""


class Seal:
    """Makes the one string that a call travels as, and opens it: the call's JSON, with a key behind its signature.

    Signed, it is `<header>..<signature> <JSON>`: a compact JWS whose content stands unencoded beside it (RFC 7515,
    appendix F; RFC 7797), as base64 would make every call larger by a third. What was sealed for one `purpose` is
    worth nothing for another. Raises `SettingsError` when it is made with a key and the libraries for that are not
    installed.
    """

    def __init__(self, signing_key: str | None, *, purpose: Purpose = "call") -> None:
        self._signature = None if signing_key is None else _Signature(_derived(signing_key, f"toolfleet {purpose}"))

    def seal(self, call: PublishedCall) -> str:
        """The call as it travels. Raises `ValueError` for arguments that are no JSON."""
        return self.sign(wire.dump(call))

    def sign(self, content: str) -> str:
        """Any text, with the signature before it if there is a key."""
        return content if self._signature is None else f"{self._signature.of(content)} {content}"

    def open(self, message: object, *, task_id: str) -> PublishedCall:
        """The call that was sealed for `task_id`. Fails closed.

        Raises `MessageRefused` if it is another's, and with a key if the message is unsigned, or not as it was signed;
        `ValueError` for what is no call. Of the deadline, which is its expiry, the caller must take care: a call that
        is over it ends as `expired`.
        """
        if not isinstance(message, str):
            raise MessageRefused("The message is no text.")
        call = wire.load(PublishedCall, self.read(message))
        if call.call_id != task_id:
            raise MessageRefused("The message is that of another call.")
        return call

    def read(self, message: str) -> str:
        """The text that was signed. Raises `MessageRefused`."""
        if self._signature is not None:
            return self._signature.verified(message)
        if message.startswith(_SIGNED):
            raise MessageRefused("The message is signed, and nobody can verify it here: set TOOLFLEET_SIGNING_KEY.")
        return message


def module_key(signing_key: str, module: str) -> str:
    """What `module` verifies caller tokens with: 43 printable characters. Raises `SettingsError` without the libraries."""
    return urlsafe_b64encode(_derived(signing_key, f"toolfleet module {module}")).rstrip(b"=").decode()


def caller_token(call: PublishedCall, key: str) -> str:
    """Who makes `call`, as a JWT for the call's module alone, under that module's key.

    `sub` is the user id, "" without one; `jti` the call id, which is the request's `Idempotency-Key`; `permission`
    one of the four levels; `tool` the tool's name. It expires with the call.
    """
    from jwt import encode  # noqa: PLC0415 - takes 0.2 s to load, for those who sign

    claims = {
        "iss": "toolfleet",
        "aud": ToolName.parse(call.tool_name).module,
        "sub": call.user_id or "",
        "permission": level_of_caller(call.caller.permission).name.lower(),
        "tool": call.tool_name,
        "jti": call.call_id,
        "iat": int(min(call.published_at, time.time())),  # an agent's clock may be ahead of everybody's
        "exp": math.ceil(call.deadline_at),
    }
    return encode(claims, key, algorithm=_ALGORITHM)


def caller_tokens(signing_key: str) -> Callable[[PublishedCall], str]:
    """What makes caller tokens for every module. Raises `SettingsError` without the libraries, now and not at a call."""
    _need_libraries()
    key_of = functools.lru_cache(_MOST_MODULES)(functools.partial(module_key, signing_key))

    def token(call: PublishedCall) -> str:
        return caller_token(call, key_of(ToolName.parse(call.tool_name).module))

    return token


class _Signature:
    """A signature that stands before what it signs."""

    def __init__(self, key: bytes) -> None:
        from jwt import PyJWS, PyJWTError  # noqa: PLC0415 - as above

        self._key = key
        self._jws = PyJWS(algorithms=[_ALGORITHM])
        self._broken = PyJWTError

    def of(self, content: str) -> str:
        return self._jws.encode(content.encode(), self._key, _ALGORITHM, {"typ": None}, is_payload_detached=True)

    def verified(self, message: str) -> str:
        """The content of a signed message; what is no signature is never parsed. Raises `MessageRefused`."""
        signature, separator, content = message.partition(" ")
        if not separator or not signature.startswith(_SIGNED) or len(signature) > _LONGEST_SIGNATURE:
            raise MessageRefused("The message is not signed: its sender needs the fleet's TOOLFLEET_SIGNING_KEY.")
        try:
            # What was verified is what is read.
            verified = self._jws.decode(signature, self._key, [_ALGORITHM], detached_payload=content.encode())
        except (self._broken, ValueError) as exc:  # half a character is a ValueError
            raise MessageRefused("The message was changed, or signed with another TOOLFLEET_SIGNING_KEY.") from exc
        return str(verified, "utf-8")


def _derived(signing_key: str, purpose: str) -> bytes:
    _need_libraries()
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    # No salt: everybody who has the signing key must come to the same keys.
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=purpose.encode()).derive(signing_key.encode())


def _need_libraries() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("cryptography", "jwt")):
        raise SettingsError("TOOLFLEET_SIGNING_KEY needs PyJWT and cryptography: pip install 'toolfleet[signing]'.")


# How the header of a JWS begins: base64 of `{"`. A call's own JSON begins with `{`.
_SIGNED = "eyJ"
