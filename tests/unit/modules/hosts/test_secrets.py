"""Secrets of a host: filled in where they are sent, and hidden in whatever leaves it."""

import base64
import json

import pytest

from toolfleet_modules.hosts.serving.secrets import Secrets, SecretUnknown

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
