r"""Personal data is found however its characters are coded, and the rest of a text stays as it is written."""

import json

import pytest

from toolfleet_registry.personal_data.personal_data import PersonalData

ALL = PersonalData()
HASHED = PersonalData(strategy="hash", key=b"sixteen bytes or more")
MAIL, CARD, PHONE = "ada@example.org", "4111111111111111", "+493090181000"

SPELLINGS = [  # a value, as it may be written, and what stands around that
    (MAIL, "ada%40example.org", "to=%s&x=1"),
    (MAIL, "ada%40example%2Eorg", "https%%3A%%2F%%2F x %s%%20y"),
    (MAIL, "ada%2540example.org", "%s%%2520"),
    (MAIL, "%61da@example.org", "x%%20%s"),
    (MAIL, "ada@example.org", "body=hi%%20%s%%0Ax"),
    (MAIL, r"ada\u0040example.org", r"{\"mail\": \"%s\", \"name\": \"\u00e4\"}"),
    (MAIL, r"ada\\u0040example\\u002eorg", r"\\\"%s\\\""),
    (MAIL, r"ada\x40example.org", "print('%s')"),
    (MAIL, r"ada\u200b@example.org", "%s \\u200b"),
    (MAIL, "ada&#64;example.org", "<p>&copy; %s &amp; more</p>"),
    (MAIL, "ada&#x40;example&period;org", "%s&nbsp;"),
    (MAIL, "ada&amp;#64;example.org", "%s;"),
    (MAIL, "a\u200bda@exam\u00adple.org", "\u200b%s\u200b \ufeff"),
    (MAIL, "ada&shy;&#64;exam&ZeroWidthSpace;ple.org", "%s&shy;"),
    (CARD, "4111.1111.1111.1111", "card %s."),
    (CARD, "4111_1111_1111_1111", "card %s, 12/29"),
    (CARD, "4111/1111/1111/1111", "(%s)"),
    (CARD, "4111\u200b1111\u200b1111\u200b1111", "%s\u200b"),
    (CARD, "4111%201111%201111%201111", "q=%s%%20x"),
    (CARD, "4111&nbsp;1111&nbsp;1111&nbsp;1111", "%s&nbsp;x"),
    ("378282246310005", "3782.822463.10005", "%s"),
    (PHONE, "%2B49%2030%2090181000", "tel:%s"),
    (PHONE, "+49\u2060 30\u2060 90181000", "tel %s\u2060"),
    ("DE89370400440532013000", "DE89%203704%200044%200532%200130%2000", "iban=%s"),
    ("DE89370400440532013000", "DE89\u00ad3704\u00ad0044\u00ad0532\u00ad0130\u00ad00", "%s"),
    ("192.0.2.17", "192&period;0&period;2&period;17", "from %s:80"),
    ("https://example.com/x", r"https:\/\/example.com\/x", r"{\"at\": \"%s\"}"),
    ("https://example.com/x", "https%3A%2F%2Fexample.com%2Fx", "next=%s"),
]

ORDINARY = [
    "100%25 of 50%20", "a LIKE '%de%' AND b", "%02d %s", "\\u00e4\\u00f6", "C:\\\\users\\\\x", "x &amp; y &lt; z",
    "na\u00adive \u200b", "👩\u200d💻 \ufe0f", "a%00b", "%zz%", "&;&#;", "2024_01_15", "1_000_000_000", "4111_1111_1111_1112",
    "4111/1111/1111/1112", "5105.1051.0510.5101", "id_4111_1111_1111_1111", "v4111.1111.1111.1111",
]  # fmt: skip

NOT_FOUND = [  # the page lists them
    "YWRhQGV4YW1wbGUub3Jn", '"ada lovelace"@example.org', "ada at example dot org", "4111 1111-1111.1111", "=61da=40example.org",
]  # fmt: skip


@pytest.mark.parametrize(("value", "spelt", "around"), SPELLINGS)
def test_a_coded_value_is_hidden_and_its_surroundings_are_kept(value: str, spelt: str, around: str) -> None:
    """Only the value itself is replaced, to the character, in a text, in JSON and in a member's name."""
    kind = ALL.find(value)[0].kind.upper()
    text, hidden = around % spelt, around % f"[{kind}]"

    assert ALL.hide(text).value == hidden
    assert ALL.hide([{text: {"n": 1, "deep": [text]}}]).value == [{hidden: {"n": 1, "deep": [hidden]}}]


@pytest.mark.parametrize(("value", "spelt", "around"), SPELLINGS)
def test_a_value_has_one_hash_in_each_spelling(value: str, spelt: str, around: str) -> None:
    """What belongs together stays together, whoever has coded it."""
    assert HASHED.hide(around % spelt).value == around % HASHED.hide(value).value


@pytest.mark.parametrize("text", ORDINARY)
def test_codes_alone_change_nothing(text: str) -> None:
    """A value that has codes and no personal data is passed as the very same object."""
    value = {"text": text, text: [text]}

    assert ALL.hide(value).value is value


def test_many_codes_in_one_text_keep_their_places() -> None:
    """Each of many values among many codes is replaced where it stands."""
    text = " ".join(f"%C3%A4&amp;\u200bu{number}%40example.org\u200b%20" for number in range(200))
    hidden = " ".join("%C3%A4&amp;\u200b[EMAIL]\u200b%20" for _ in range(200))

    assert ALL.hide(text).value == hidden
    assert ALL.hide(json.dumps([text])).value == json.dumps([hidden])


def test_a_finding_that_is_there_only_as_it_is_written_stays_one() -> None:
    """What a detector finds in the text as it is, is hidden also where the decoded text shows something else."""
    assert ALL.hide("a%40b@example.org").value == "[EMAIL]"
    assert ALL.hide("https://x.example/a%20path%20of%20words").value == "[URL]"
    assert PersonalData([], {"escape": "%40[a-z]{3}"}).hide("x%40abc").value == "x[ESCAPE]"


@pytest.mark.parametrize("text", NOT_FOUND)
def test_the_spellings_that_pass_are_known(text: str) -> None:
    """The guide lists each of these kinds: what becomes found leaves that list."""
    assert ALL.find(text) == []
