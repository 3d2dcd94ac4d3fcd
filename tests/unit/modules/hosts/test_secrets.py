"""Secrets of a host: filled in where they are sent, and hidden in whatever leaves it."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.openapi.operation_tool import ServiceAnswer, reply_of
from toolfleet_modules.hosts.secrets import Secrets, SecretUnknown

VALUE = 'gh/"p\\ ü-0123456789'


def test_a_place_is_filled_with_the_secret_of_its_name() -> None:
    """What looks like no place stays as it is."""
    assert Secrets({"TOKEN": VALUE}).fill("Bearer ${TOKEN}, $TOKEN, ${}") == f"Bearer {VALUE}, $TOKEN, ${{}}"


@pytest.mark.parametrize(
    "text",
    [
        VALUE,
        json.dumps({"echo": [VALUE]}),
        json.dumps({"echo": [VALUE]}, ensure_ascii=False),
        json.dumps({"echo": VALUE}).replace("/", "\\/"),
        "https://owls.test/?token=gh%2F%22p%5C%20%C3%BC-0123456789",
        f"KeyError({VALUE!r})",
        f"{[VALUE, chr(39)]}",
    ],
    ids=["plain", "json", "json in utf-8", "json with escaped slashes", "url", "python", "a list of python's"],
)
def test_a_value_is_hidden_in_every_form(text: str) -> None:
    """As text and as bytes; its name stands there."""
    secrets = Secrets({"TOKEN": VALUE})

    for hidden in (secrets.hide(text), secrets.hide_bytes(text.encode()).decode()):
        assert "0123456789" not in hidden
        assert "[secret TOKEN]" in hidden


KEY = "abc+def/ghi=jkl&m%41 n"
DOTNET = json.dumps(KEY).replace("+", "\\u002B").replace("&", "\\u0026").replace("/", "\\u002f")
FOLDED = base64.encodebytes(f"user:{KEY * 5}".encode()).decode()
SPELLED = {
    ".NET's JSON": DOTNET,
    "JSON in JSON": json.dumps({"error": DOTNET}),
    "JSON in JSON in JSON": json.dumps(json.dumps({"error": DOTNET})),
    "a URL": quote(KEY, safe=""),
    "a URL in small letters": quote(KEY, safe="").lower(),
    "a URL in JSON in a URL": quote(json.dumps(quote(KEY, safe="")), safe=""),
    "a URL that is encoded twice": quote(quote(KEY, safe=""), safe=""),
    "each character in a URL": "".join(f"%{each:02x}" for each in KEY.encode()),
    "a form": f"key={quote_plus(KEY)}&day=3",
    "a form whose plus is none": quote(KEY, safe="+"),
    "decimal entities": "".join(f"&#{ord(each)};" for each in KEY),
    "hexadecimal entities": "".join(f"&#x{ord(each):X};" for each in KEY),
    "HTML": html.escape(KEY).replace("+", "&plus;").replace("/", "&sol;").replace("=", "&equals;"),
    "HTML in JSON": json.dumps(html.escape(KEY)).replace("&", "\\u0026"),
    "each character in JSON": "".join(f"\\u{ord(each):04x}" for each in KEY),
    "hexadecimal escapes": "".join(f"\\x{ord(each):02x}" for each in KEY),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 in a URL": quote(base64.urlsafe_b64encode(f"x{KEY}".encode()).decode(), safe=""),
    "base64 in lines": FOLDED,
    "base64 in lines of CRLF": FOLDED.replace("\n", "\r\n  "),
    "base64 in lines in JSON": json.dumps({"key": FOLDED}),
    "base64 in JSON with escapes": json.dumps(base64.b64encode(KEY.encode()).decode()).replace("+", "\\u002b"),
    "broken over lines": KEY[:9] + "\n" + KEY[9:],
}


@pytest.mark.parametrize("written", SPELLED.values(), ids=SPELLED.keys())
@pytest.mark.parametrize(
    "around", ["{}", "100% {} &c.", "\\{}", "[{}, {}]"], ids=["alone", "a %", "a backslash", "twice"]
)
def test_a_value_is_hidden_however_it_is_encoded(written: str, around: str) -> None:
    """What is around it stays as it is, and so does a text without it."""
    secrets = Secrets({"KEY": KEY})
    text = around.replace("{}", written)

    for hidden in (secrets.hide(text), secrets.hide_bytes(text.encode()).decode()):
        assert hidden.count("[secret KEY]") >= text.count(written)
        kept = hidden.replace("[secret KEY]", "")
        assert len(kept) <= len(text) - text.count(written) * min(len(written) - 24, len(KEY))
    reply = json.dumps({"success": False, "error": text}).encode()
    assert "[secret KEY]" in json.loads(secrets.hide_json(reply))["error"]


WRITERS: list[Callable[[str], str]] = [
    lambda each: each,
    lambda each: f"%{ord(each):02x}",
    lambda each: f"%25{ord(each):02X}",
    lambda each: f"\\u{ord(each):04x}",
    lambda each: f"\\\\u{ord(each):04X}",
    lambda each: f"&#{ord(each)};",
    lambda each: f"&amp;#x{ord(each):x};",
]


@given(st.lists(st.sampled_from(WRITERS), min_size=len(KEY), max_size=len(KEY)))
def test_a_value_is_hidden_in_any_mixture(writers: list[Callable[[str], str]]) -> None:
    """Each character may be written otherwise."""
    text = "".join(writer(each) for writer, each in zip(writers, KEY, strict=True))

    assert Secrets({"KEY": KEY}).hide(text) == "[secret KEY]"


@pytest.mark.parametrize(
    "text",
    [
        "100% of 5 &amp; 6 &nope; %zz \\u00 \\q C:\\new\\x.txt a+b",
        "%%41%25%2541" * 100,
        "\\ud83d\\ude00 \\ud83d %C3%BC %FC \\xfc",
        "abc\n def/\tghi",
        "",
    ],
)
def test_a_text_without_a_value_stays_as_it_is(text: str) -> None:
    """Whatever in it looks like an escape."""
    secrets = Secrets({"KEY": KEY, "OTHER": "\U0001f600-ü-0123"})

    assert secrets.hide(text) is text
    assert secrets.hide_bytes(text.encode()) == text.encode()


def test_characters_outside_of_ascii_are_found_in_pairs_and_bytes() -> None:
    """As JSON, Python, a URL in UTF-8, and one in Latin-1 write them."""
    secrets = Secrets({"EMOJI": "\U0001f600-ü-0123", "LATIN": "Müller-1815"})

    assert secrets.hide(json.dumps("\U0001f600-ü-0123")) == '"[secret EMOJI]"'
    assert secrets.hide(quote("\U0001f600-ü-0123")) == "[secret EMOJI]"
    assert secrets.hide("x=M%FCller-1815") == "x=[secret LATIN]"
    assert secrets.hide(str("Müller-1815".encode())) == "b'[secret LATIN]'"


@pytest.mark.parametrize("before", ["", "u", "us", "use"])
def test_a_value_in_base64_is_hidden(before: str) -> None:
    """As a header of basic authentication has it, wherever it begins there."""
    secrets = Secrets({"TOKEN": VALUE})
    encoded = base64.b64encode(f"{before}{VALUE}:".encode()).decode()

    hidden = secrets.hide(f"Basic {encoded}")

    assert "[secret TOKEN]" in hidden
    assert len(hidden.replace("[secret TOKEN]", "")) < len("Basic ") + 10


def test_each_line_of_a_value_is_hidden() -> None:
    """A key's lines are shown one by one, or with others between them."""
    secrets = Secrets({"KEY": "-----BEGIN-----\nMIIEowIBAAKCAQEA\nshort"})

    assert secrets.hide("1: MIIEowIBAAKCAQEA") == "1: [secret KEY]"


@pytest.mark.parametrize(
    ("data", "hidden"),
    [
        ({"n": 1234567890, "m": 1.5, "t": True}, {"n": "[secret NUMBER]", "m": 1.5, "t": True}),
        ({"a1234567890": ["1234567890"]}, {"a[secret NUMBER]": ["[secret NUMBER]"]}),
    ],
    ids=["a number", "a key and a text"],
)
def test_json_stays_json(data: object, hidden: object) -> None:
    """Whatever a value is a part of."""
    assert json.loads(Secrets({"NUMBER": "1234567890"}).hide_json(json.dumps(data).encode())) == hidden


def test_a_value_that_is_a_part_of_another_is_hidden_after_it() -> None:
    """Nothing of the longer one stays."""
    secrets = Secrets({"SHORT": "abcdefgh", "LONG": "abcdefgh-ijkl"})

    assert secrets.hide("abcdefgh-ijkl abcdefgh") == "[secret LONG] [secret SHORT]"


def test_bytes_without_a_secret_are_the_same_object() -> None:
    """Nearly every reply is: nothing is copied."""
    data = b"owls"
    assert Secrets({"TOKEN": VALUE}).hide_bytes(data) is data


def test_what_is_no_secret_here_is_refused() -> None:
    """One that is not there, and one that is too short to be hidden; no value is shown."""
    with pytest.raises(SecretUnknown, match="no secret named 'OTHER'"):
        Secrets({"TOKEN": VALUE}).fill("${OTHER}")
    with pytest.raises(SecretUnknown, match="less than 8") as caught:
        Secrets({"TOKEN": "s3cr3t"})
    assert "s3cr3t" not in str(caught.value)
    assert VALUE not in repr(Secrets({"TOKEN": VALUE}))


@pytest.mark.parametrize("at", [0, 1400, 1480, 1499])
def test_a_value_is_hidden_before_a_header_is_cut(at: int) -> None:
    """A service may repeat the credential in the address of its next page."""
    value = "sk-abcdefghijklmnopqrstuvwxyz"
    answer = ServiceAnswer(200, {"link": f"<https://a.example/{'.' * at}?api_key={value}>"}, b"")
    reply = reply_of(
        "owls.list",
        answer,
        described={},
        is_checked=False,
        is_repeatable=True,
        most_bytes=10_000,
        secrets=Secrets({"KEY": value}),
    )

    assert "Link: " in reply.body
    assert "sk-" not in reply.body
