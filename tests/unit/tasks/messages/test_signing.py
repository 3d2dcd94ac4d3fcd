"""A signed call is opened as it was sealed, or not at all."""

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable

import jwt
import pytest

from support.programs.counted_calls import counted
from support.published_call import published
from toolfleet_registry.contracts import Caller
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal, caller_token, caller_tokens, module_key

KEY = "0123456789abcdef0123456789abcdef"
OTHER = "another key of thirty-two characters"
CALL = published(arguments={"text": "🦉\ud800 \u2028"}, caller=Caller(user_id="ada", permission="admin"), user_id="ada")


def test_a_signed_call_comes_out_as_it_went_in() -> None:
    """Odd characters included; the call itself stays readable for whoever looks into the queue."""
    message = Seal(KEY).seal(CALL)

    assert Seal(KEY).open(message, task_id="call-1") == CALL
    assert message.endswith(f" {json_text.dump(CALL)}")
    assert message.isascii()


def test_without_a_key_a_call_is_its_json() -> None:
    """Nothing is signed, nothing is checked but whose call it is."""
    message = Seal(None).seal(CALL)

    assert message == json_text.dump(CALL)
    assert Seal(None).open(message, task_id="call-1") == CALL


def test_a_call_is_sealed_alike_each_time() -> None:
    """A retry may carry the first message's very text."""
    assert Seal(KEY).seal(CALL) == Seal(KEY).seal(CALL)


def test_the_signature_is_what_the_standards_say() -> None:
    """HMAC-SHA256 over header and content, under a key that HKDF derives for this purpose."""
    head, _, content = Seal(KEY).seal(CALL).partition(" ")
    header, _, signature = head.partition("..")
    derived = hkdf(b"toolfleet call")

    assert json.loads(unpadded(header)) == {"alg": "HS256", "b64": False, "crit": ["b64"]}
    assert unpadded(signature) == hmac.digest(derived, f"{header}.{content}".encode(), "sha256")


def sealed(key: str = KEY) -> tuple[str, str, str]:
    """A message's header, signature, and content."""
    head, _, content = Seal(key).seal(CALL).partition(" ")
    header, _, signature = head.partition("..")
    return header, signature, content


def with_header(**fields: object) -> str:
    _, signature, content = sealed()
    header = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    return f"{header}..{signature} {content}"


TAMPERED: dict[str, Callable[[], object]] = {
    "another caller": lambda: Seal(KEY).seal(CALL).replace('"admin"', '"owner"'),
    "another argument": lambda: Seal(KEY).seal(CALL).replace("ud800", "ud801"),
    "a later deadline": lambda: Seal(KEY).seal(CALL).replace('"deadline_at":1', '"deadline_at":2'),
    "something behind it": lambda: Seal(KEY).seal(CALL) + " ",
    "signed with another key": lambda: Seal(OTHER).seal(CALL),
    "a module's token": lambda: f"{caller_token(CALL, module_key(KEY, 'research'))} {json_text.dump(CALL)}",
    "unsigned": lambda: json_text.dump(CALL),
    "an empty signature": lambda: "{0}.. {2}".format(*sealed()),
    "half of the signature": lambda: f"{sealed()[0]}..{sealed()[1][:20]} {sealed()[2]}",
    "no algorithm": lambda: with_header(alg="none", b64=False, crit=["b64"]),
    "no algorithm, no signature": lambda: with_header(alg="none").replace(sealed()[1], ""),
    "an algorithm of no sense": lambda: with_header(alg=["HS256"], b64=False, crit=["b64"]),
    "a longer hash": lambda: with_header(alg="HS512", b64=False, crit=["b64"]),
    "a key pair": lambda: with_header(alg="RS256", b64=False, crit=["b64"]),
    "another form of content": lambda: with_header(alg="HS256"),
    "content in the signature": lambda: Seal(KEY).seal(CALL).replace("..", ".e30.", 1),
    "a header that must be understood": lambda: with_header(alg="HS256", b64=False, crit=["b64", "exp"], exp=1),
    "only a signature": lambda: Seal(KEY).seal(CALL).partition(" ")[0],
    "only a space": lambda: " ",
    "nothing": lambda: "",
    "half a character": lambda: Seal(KEY).seal(CALL).replace('"ada"', '"\ud800"'),
    "other alphabets": lambda: "eyJ🦉..🦉 {}",
    "a number": lambda: 7,
    "an object": lambda: {"call_id": "call-1"},
    "null": lambda: None,
}


@pytest.mark.parametrize("forged", TAMPERED.values(), ids=TAMPERED)
def test_what_was_not_signed_like_this_is_refused(forged: Callable[[], object]) -> None:
    """Whatever is changed, left out, or put in its place: one clear error, and no call."""
    with pytest.raises(MessageRefused):
        Seal(KEY).open(forged(), task_id="call-1")


def test_every_character_counts() -> None:
    """Whichever single one is another, or missing: there is no second way to write a signature."""
    message = Seal(KEY).seal(CALL)
    for place, character in enumerate(message):
        for other in ("", "A", "B", ".", "=", " ", "\n"):
            if other != character:
                with pytest.raises(MessageRefused):
                    Seal(KEY).open(message[:place] + other + message[place + 1 :], task_id="call-1")


@pytest.mark.parametrize("key", [KEY, None])
def test_a_call_is_opened_under_its_own_id_only(key: str | None) -> None:
    """A message that is put into a queue under another task id is not run as that."""
    with pytest.raises(MessageRefused, match="another call"):
        Seal(key).open(Seal(key).seal(CALL), task_id="call-2")


def test_a_worker_without_the_key_says_what_is_missing() -> None:
    """It cannot verify, so it does not run what somebody took the trouble to sign."""
    with pytest.raises(MessageRefused, match="set TOOLFLEET_SIGNING_KEY"):
        Seal(None).open(Seal(KEY).seal(CALL), task_id="call-1")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"call_id": "call-1"}', "owls", "[" * 100_000])
def test_without_a_key_what_is_no_call_is_a_value_error(text: str) -> None:
    """Also what is nested deeper than Python goes."""
    with pytest.raises(ValueError, match=r"."):
        Seal(None).open(text, task_id="call-1")


@pytest.mark.parametrize(
    "garbage",
    [
        lambda: "x" * 2**25,
        lambda: "." * 2**25,
        lambda: "eyJ" * 2**23 + ".. {}",  # a header without end
        lambda: "eyJ" + "[" * 2**25,
        lambda: "{" * 2**25,
        lambda: f"{sealed()[0]}..{'A' * 2**25} {{}}",  # a signature without end
        lambda: f"{sealed()[0]}..{sealed()[1]} {'[' * 2**25}",  # content that only its signature keeps from being read
    ],
    ids=range(7),
)
def test_garbage_of_any_size_costs_next_to_nothing(garbage: Callable[[], str]) -> None:
    """32 MiB are refused, or hashed once, before anybody looks at every character, as PyJWT alone would."""
    seal, text = Seal(KEY), garbage()

    def open_it() -> None:
        with pytest.raises(MessageRefused):
            seal.open(text, task_id="call-1")

    assert counted(open_it)[1] < 1_000  # of 32 million characters


def test_every_module_has_a_key_of_its_own() -> None:
    """Printable, and the same wherever it is derived."""
    keys = {module_key(KEY, "research"), module_key(KEY, "owls"), module_key(OTHER, "owls")}

    assert len(keys) == 3
    assert module_key(KEY, "owls") == base64.urlsafe_b64encode(hkdf(b"toolfleet module owls")).decode().rstrip("=")


def test_a_module_can_verify_who_calls() -> None:
    """The claims say who may do what, in which call, and until when."""
    call = published("owls.count", user_id="ada", caller=Caller(user_id="ada", permission="admin"))
    claims = jwt.decode(
        caller_tokens(KEY)(call), module_key(KEY, "owls"), algorithms=["HS256"], audience="owls", issuer="toolfleet"
    )

    assert claims == {
        "iss": "toolfleet",
        "aud": "owls",
        "sub": "ada",
        "permission": "admin",
        "tool": "owls.count",
        "jti": "call-1",
        "iat": int(call.published_at),
        "exp": claims["exp"],
    }
    assert 0 <= claims["exp"] - call.deadline_at < 1


def test_a_token_tells_no_more_than_is_so() -> None:
    """No user is an empty subject, an unknown level a guest; a publisher's fast clock makes no token of the future."""
    call = published(
        "owls.count", caller=Caller().model_copy(update={"permission": "emperor"}), published_at=time.time() + 3600
    )
    claims = jwt.decode(
        caller_tokens(KEY)(call), module_key(KEY, "owls"), algorithms=["HS256"], audience="owls", issuer="toolfleet"
    )

    assert (claims["sub"], claims["permission"]) == ("", "guest")


def test_one_modules_token_is_worth_nothing_to_another() -> None:
    """A module that knows its key cannot speak to another in a caller's name, nor put a call into a queue."""
    token = caller_tokens(KEY)(published("owls.count"))

    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(token, module_key(KEY, "research"), algorithms=["HS256"], audience="owls")
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(token, module_key(KEY, "owls"), algorithms=["HS256"], audience="research")


def test_a_token_ends_with_its_call() -> None:
    """After the deadline it says nothing any more."""
    token = caller_tokens(KEY)(published("owls.count", published_at=1, deadline_at=2))

    with pytest.raises(jwt.ExpiredSignatureError):
        jwt.decode(token, module_key(KEY, "owls"), algorithms=["HS256"], audience="owls")


@pytest.mark.parametrize("library", ["jwt", "cryptography"])
@pytest.mark.parametrize("needy", [Seal, caller_tokens, lambda key: module_key(key, "owls")])
def test_a_key_needs_its_libraries(
    monkeypatch: pytest.MonkeyPatch, library: str, needy: Callable[[str], object]
) -> None:
    """One sentence with what to install, at the start and not at the first call; without a key nobody needs them."""
    monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed

    with pytest.raises(SettingsError, match=r"pip install 'toolfleet\[signing\]'"):
        needy(KEY)
    assert Seal(None).open(Seal(None).seal(CALL), task_id="call-1") == CALL


def test_nothing_shows_the_key() -> None:
    """What makes and opens messages may be printed, in a log or a traceback."""
    for holder in (Seal(KEY), caller_tokens(KEY)):
        assert KEY not in repr(holder)


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def hkdf(info: bytes) -> bytes:
    """RFC 5869 by hand, for one block and no salt."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), KEY.encode(), "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")
