"""Signs calls and reports about them against changes on their way, and callers so that a module can trust them.

The signature is next to the text, in a field of its own, so that older readers see the same text as before. Unlike a
`Seal` it costs no more than the hash.

Each purpose has a key of its own (HKDF-SHA256 of the signing key): a module's key, with which it could forge, is worth
nothing for another module, nor in a queue.
"""

import functools
import hashlib
import hmac
import json
import math
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from toolfleet_registry.contracts import PublishedCall, SealedCall
from toolfleet_registry.contracts.names import ToolName
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.permissions import level_of_caller
from toolfleet_registry.policy.redaction import redacted
from toolfleet_registry.signing import SigningSettings, TextSeal, derived_key, need_libraries
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.messages import json_text

SignedSubject = Literal["result", "failure", "attempt", "progress", "log", "revocation", "job end"]
"""What is signed, each with a key of its own: a call's result; that Celery has ended it; what one attempt came to; how far
it is; what it logs; that workers are to drop it. Of a job, how it has ended.
"""

_SIGNS = " \t\n\r"
_BLANKS = [first + second for first in _SIGNS for second in _SIGNS]  # by the value of a hexadecimal digit

# A circle ends in a `RecursionError`, too.
_encode_sorted = json.JSONEncoder(sort_keys=True, check_circular=False, separators=(",", ":")).encode

APART = '{"head":'
"""How a sealed call begins whose arguments stand apart: how long its head is, its signature, the head, and the arguments."""
_APART = re.compile(r'\{"head":([0-9]{1,9}),"seal":"([A-Za-z0-9._-]*)","call":')
_BETWEEN = ',"arguments":'

_SHA256 = "sha256:"
_ALGORITHM = "HS256"
_MOST_MODULES = 1024  # whose keys are kept; deriving one takes some 20 µs

Purpose = Literal["call", "dead letter", "job", "program"]
"""What is sealed."""


class Signatures:
    """Makes and verifies the signatures of one kind. Without keys there are none, and none is required.

    Raises `SettingsError` when it is made with keys and the libraries for that are not installed.
    """

    __slots__ = ("_keys",)

    def __init__(self, settings: SigningSettings | None, subject: SignedSubject) -> None:
        self._keys = [derived_key(key, subject) for key in (settings.signing_keys if settings else ())]

    def of(self, call_id: str, text: str) -> str:
        """Return the signature, 64 hex digits; "" without a key."""
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
    """Return JSON with its signature behind it, in blanks, which every reader of JSON ignores: four signs for two bits each.

    For what readers of other versions take no further field in.
    """
    return text + "".join(_BLANKS[int(digit, 16)] for digit in signature)


def split_json(content: str) -> tuple[str, str | None]:
    """Split the output of `after_json`; without a signature if there is no valid form of one."""
    text = content.rstrip(_SIGNS)
    blanks = content[len(text) :]
    digits = [_BLANKS.index(blanks[at : at + 2]) for at in range(0, len(blanks) - 1, 2)]
    return text, "".join(f"{digit:x}" for digit in digits) or None


class Seal(TextSeal):
    """Makes the one string that a call travels as, and opens it: the call's JSON, with a key behind its signature."""

    def __init__(self, signing_key: str | None, *, purpose: Purpose = "call", old_keys: Sequence[str] = ()) -> None:
        super().__init__(signing_key, purpose=purpose, old_keys=old_keys)

    def seal(self, call: PublishedCall) -> str:
        """Return the sealed call. Raises `ValueError` for arguments that are not JSON."""
        return self.sign(json_text.dump(call))

    def seal_apart(self, call: PublishedCall) -> str | None:
        """Return the sealed call with its arguments apart, as JSON of their own that workers pass on unparsed; `None` if it has no such form.

        The arguments are written from the value that was checked: ASCII, and no name twice. The signature covers the
        head, which names their length and digest.
        """
        try:
            arguments = to_json(call.arguments, ensure_ascii=True).decode()
        except ValueError:  # half a surrogate pair, or what only Python's own encoder takes
            return None
        if "NaN" in arguments or "Infinity" in arguments:  # perhaps in a text: the usual form has room for it
            return None
        if self._signature is None:
            head, signature = json_text.dump_without(call, "arguments"), ""
        else:
            digest, shown = _sha256(arguments), arguments_digest(call.arguments, call.sensitive)
            if shown is None:
                return None
            own = "" if shown == f"{_SHA256}{digest}" else f'"digest":"{shown}",'
            about = f'"length":{len(arguments)},"sha256":"{digest}",{own}'
            head = json_text.dump_without(call, "arguments", about)
            signature = self._signature.of(head)
        return f'{APART}{len(head)},"seal":"{signature}","call":{head}{_BETWEEN}{arguments}}}'

    def open(self, message: object, *, task_id: str) -> PublishedCall:
        """Open the call that was sealed for `task_id`. Fails closed.

        Raises `MessageRefused` if it is another's, and with a key if the message is unsigned, or changed; `ValueError`
        for an invalid call. The caller must check the deadline, which is its expiry: a call that is past it ends as
        `expired`.
        """
        if not isinstance(message, str):
            raise MessageRefused("The message is no text.")
        if message.startswith(APART):
            call = self._opened_apart(message)
        else:
            call = json_text.load(PublishedCall, self.read(message))
        if call.call_id != task_id:
            raise MessageRefused("The message is that of another call.")
        return call

    def _opened_apart(self, message: str) -> PublishedCall:
        """Open what `seal_apart` has made. Without a signature that was verified here the arguments are parsed at once."""
        found = _APART.match(message)
        start = found.end() if found else 0
        end = start + int(found[1]) if found else 0
        head, text = message[start:end], message[end + len(_BETWEEN) : -1]
        if found is None or message[end:] != f"{_BETWEEN}{text}}}":
            raise MessageRefused("The message was changed.")
        if not found[2]:
            whole = f"{head[:-1]}{_BETWEEN}{text}}}"
            return json_text.load(PublishedCall, whole if self._signature is None else self.read(whole))
        head = self.read(f"{found[2]} {head}")
        return json_text.load(SealedCall, head, functools.partial(_sealed_call, text=text))


def _sealed_call(head: Any, text: str) -> SealedCall:
    """Return the call of a head that was verified. Raises `MessageRefused` if it is not about these arguments."""
    if not isinstance(head, dict) or (head.get("length"), head.get("sha256")) != (len(text), _sha256(text)):
        raise MessageRefused("The message has other arguments than were sealed.")
    if text[:1] != "{" or text[-1:] != "}":
        raise MessageRefused("The arguments that were sealed are no object.")
    return SealedCall.of(head, text)


def digest_of(call: PublishedCall) -> str | None:
    """Return the digest of a call's arguments in the audit."""
    if isinstance(call, SealedCall):
        return call.digest or f"{_SHA256}{call.sha256}"
    return arguments_digest(call.arguments, call.sensitive)


def arguments_digest(arguments: Mapping[str, Any], sensitive: tuple[str, ...]) -> str | None:
    """`sha256:` and 64 hex digits of the arguments without the sensitive ones, as JSON with sorted names; `None` for no JSON."""
    try:
        shown = redacted(arguments, sensitive) if sensitive else arguments
        return _SHA256 + _sha256(_encode_sorted(shown))
    except (ValueError, TypeError, RecursionError):
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def seal_of(settings: SigningSettings, *, purpose: Purpose = "call") -> Seal:
    """Return the seal of a fleet with these settings."""
    return Seal(settings.signing_key, purpose=purpose, old_keys=settings.signing_keys_old)


def module_key(signing_key: str, module: str) -> str:
    """Return the key with which `module` verifies caller tokens: 43 printable characters.

    Raises `SettingsError` without the libraries.
    """
    return urlsafe_b64encode(derived_key(signing_key, f"module {module}")).rstrip(b"=").decode()


def module_keys(signing_keys: Sequence[str], module: str) -> str:
    """Return the keys of a module for each of the fleet's keys, with commas between them: the value of a `TOOLFLEET_MODULE_KEY`."""
    return ",".join(module_key(key, module) for key in signing_keys)


def caller_token(call: PublishedCall, key: str) -> str:
    """Return the caller of `call`, as a JWT for the call's module alone, under that module's key.

    `sub` is the user id, "" without one; `jti` the call id, which is the request's `Idempotency-Key`; `permission` one
    of the four levels; `tool` the tool's name. It expires with the call.
    """
    from jwt import encode  # takes 0.2 s to load, for those who sign

    claims = {
        "iss": "toolfleet",
        "aud": ToolName.parse(call.tool_name).module,
        "sub": call.user_id or "",
        "permission": level_of_caller(call.caller.permission).name.lower(),
        "tool": call.tool_name,
        "jti": call.call_id,
        "iat": int(min(call.published_at, fleet_clock.now())),  # an agent's clock may be ahead of everybody's
        "exp": math.ceil(call.deadline_at),
    }
    return encode(claims, key, algorithm=_ALGORITHM)


def caller_tokens(signing_key: str) -> Callable[[PublishedCall], str]:
    """Return a function that makes caller tokens for every module.

    Raises `SettingsError` without the libraries, now and not at a call.
    """
    need_libraries()
    key_of = functools.lru_cache(_MOST_MODULES)(functools.partial(module_key, signing_key))

    def token(call: PublishedCall) -> str:
        return caller_token(call, key_of(ToolName.parse(call.tool_name).module))

    return token
