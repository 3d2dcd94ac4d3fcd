"""What each detector takes for personal data, and what it does not: by lines, and against a generated set."""

import pytest

from support.personal_data.corpus import WHOLE, labelled_texts
from support.personal_data.scores import Scores, scores_of
from support.personal_data.sentences import LANGUAGES
from toolfleet_registry.personal_data.findings import KINDS
from toolfleet_registry.personal_data.personal_data import PersonalData

ALL = PersonalData()

THERE = [
    ("email", "Write to <anna.smith+news@mail.example.co.uk>.", "anna.smith+news@mail.example.co.uk"),
    ("email", "mailto:bob@example.com?subject=x", "bob@example.com"),
    ("email", "'o'neil@example.com'", "o'neil@example.com"),
    ("email", "请写信到zhang@example.com谢谢", "zhang@example.com"),
    ("email", "иван@почта.рф, и всё", "иван@почта.рф"),
    ("email", "bob@example.com:password1", "bob@example.com"),
    ("email", '{"text": "Hello\\nbob@example.com"}', "bob@example.com"),
    ("phone", "Call (415) 555-2671 or", "(415) 555-2671"),
    ("phone", "((415) 555-2671)", "(415) 555-2671"),
    ("phone", "+49 (0)30 1234567.", "+49 (0)30 1234567"),
    ("phone", "0049 171 1234567", "0049 171 1234567"),
    ("phone", "Tel.: 0171/1234567", "0171/1234567"),
    ("phone", "415-555-2671x123", "415-555-2671"),
    ("phone", "06.12.34.56.78", "06.12.34.56.78"),
    ("phone", "my mobile is 4155552671", "4155552671"),
    ("phone", "13812345678", "13812345678"),
    ("phone", "０９０−１２３４−５６７８へ", "０９０−１２３４−５６７８"),
    ("phone", "2026-11-26 0171 1234567", "0171 1234567"),
    ("credit_card", "4111 1111 1111 1111, 12/29", "4111 1111 1111 1111"),
    ("credit_card", "card 3782-822463-10005", "3782-822463-10005"),
    ("credit_card", "pan=5555555555554444;", "5555555555554444"),
    ("credit_card", "4111 1111 1111 1111 123", "4111 1111 1111 1111"),
    ("iban", "IBAN DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00"),
    ("iban", "gb29nwbk60161331926819", "gb29nwbk60161331926819"),
    ("iban", "GB29-NWBK-6016-1331-9268-19", "GB29-NWBK-6016-1331-9268-19"),
    ("ip", "from 192.168.0.17:8080", "192.168.0.17"),
    ("ip", "10.0.0.0/8", "10.0.0.0"),
    ("ip", "It is 1.2.3.4.", "1.2.3.4"),
    ("ip", "Server 1.2.3.4", "1.2.3.4"),
    ("ip", "[2001:db8::1]:443", "2001:db8::1"),
    ("ip", "FE80::1%eth0 is up", "FE80::1%eth0"),
    ("ip", "::ffff:192.0.2.1", "::ffff:192.0.2.1"),
    ("ip", "ip:2001:db8:0:0:0:0:0:1", "2001:db8:0:0:0:0:0:1"),
    ("mac_address", "MAC:00:1A:2B:3C:4D:5E", "00:1A:2B:3C:4D:5E"),
    ("mac_address", "00-1a-2b-3c-4d-5e", "00-1a-2b-3c-4d-5e"),
    ("mac_address", "001a.2b3c.4d5e", "001a.2b3c.4d5e"),
    ("mac_address", "02:00:5e:10:00:00:00:01", "02:00:5e:10:00:00:00:01"),
    ("url", "(see https://example.com/a_(b)?c=d#e).", "https://example.com/a_(b)?c=d#e"),
    ("url", "[x](http://[2001:db8::1]:8080/y)", "http://[2001:db8::1]:8080/y"),
    ("url", "https://user:secret@example.com:8443/", "https://user:secret@example.com:8443/"),
    ("url", "https://a.example,https://b.example", "https://a.example"),
    ("url", "www.example.com!", "www.example.com"),
    ("url", "访问https://example.com/路径。谢谢", "https://example.com/路径"),
]
NOTHING = [
    "git@github.com:acme/tools.git", "lodash@4.17.21", "logo@2x.png", "@anna", "a @ b", "user@localhost", "order 415-55-26", "145-59-2774", "08725233", "0603036971643", "046-3673", "1280x1024", "rv:1.9.6.20", "a..b@", "@", "://", "http://",
    "20261126", "2026-11-26 11:24:41", "26.11.2026", "978-3-16-148410-0", "0-306-40615-2", "1,234,567.89",
    "€ 1234567", "4111 1111 1111 1112", "1111 1111 1111 1117", "x4111111111111111", "DE88 3704 0044 0532 0130 00", "ZZ89370400440532013000",
    "v1.2.3.4", "version 1.2.3.4", "libfoo==1.2.3.4", "driver-1.2.3.4.zip", "Chrome/120.0.0.0", "1.3.6.1.4.1.311", "256.1.1.1", "01.02.03.04",
    "12:34:56", "a[::2]", "std::vector", "rows[1::3]", "dead::beef", "::", "aa:bb:cc:dd:ee:ff:00:11:22:33", "00:1a:2b:3c:4d",
    "550e8400-e29b-41d4-a716-446655440000", "#ff8800", "1732620281", "1732620281123", "52.520008, 13.404954", "example.com", "90210-1234",
    "d41d8cd98f00b204e9800998ecf8427e", "0", "", "\n", "[EMAIL]", "[PHONE][SAME_2]", "[email:0123456789abcdef]",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), THERE, ids=[text for _, text, _ in THERE])
def test_it_is_found_to_the_character(kind: str, text: str, value: str) -> None:
    """The first finding is this value, of this kind, and the text is longer than that or the same."""
    first = ALL.find(text)[0]

    assert (first.kind, text[first.start : first.end]) == (kind, value)


@pytest.mark.parametrize("text", NOTHING)
def test_what_looks_like_it_is_left(text: str) -> None:
    """Nothing is found in it."""
    assert ALL.find(text) == []


def test_a_name_says_what_a_value_is() -> None:
    """Digits alone are a phone's number in a member called so, at any depth, and a version's in another."""
    value = {"homePhone": "4155552671", "phones": [4155552671], "order": "4155552671", "server_version": "1.2.3.4"}

    assert ALL.hide(value).value == {
        "homePhone": "[PHONE]",
        "phones": ["[PHONE]"],
        "order": "4155552671",
        "server_version": "1.2.3.4",
    }


def test_numbers_at_home_need_their_region() -> None:
    """Without regions only those with a country are found; a region that is none is refused."""
    abroad = PersonalData(["phone"], regions=())

    assert abroad.find("Tel. 0171 1234567") == []
    assert [each.kind for each in abroad.find("Tel. +49 171 1234567")] == ["phone"]
    with pytest.raises(ValueError, match=r"'XX' is no region of phone numbers: write two capitals, such as 'DE'\."):
        PersonalData(["phone"], regions=["XX"])


def test_the_longest_counts_and_covers_what_it_overlaps() -> None:
    """An email and an address in a URL are part of it; alone they are found."""
    text = "https://192.0.2.1/?to=bob@example.com"

    assert [(each.kind, each.start, each.end) for each in ALL.find(text)] == [("url", 0, len(text))]
    assert [each.kind for each in PersonalData(["ip", "email"]).find(text)] == ["ip", "email"]


SMALL = 1_500


@pytest.mark.parametrize("count", [SMALL, pytest.param(WHOLE, marks=pytest.mark.slow)])
def test_nearly_all_is_found_and_nearly_nothing_else(count: int) -> None:
    """Of all places at least 98 of 100 are found to the character, and at most five of 100 findings are none."""
    scores = _scores(count)

    print(scores.table())  # noqa: T201 - `pytest -s` shows it
    assert scores.overall.recall >= 0.98, "\n".join([scores.table(), *scores.faults[:50]])
    assert scores.overall.precision >= 0.95, "\n".join([scores.table(), *scores.faults[:50]])
    assert {kind: score.recall for kind, score in scores.kinds.items() if score.recall < 0.95} == {}
    assert set(scores.kinds) == set(KINDS)


def test_the_set_is_the_same_each_time_and_has_what_it_says() -> None:
    """A seed stands for its texts; eight languages and all look-alikes are in them, and each place holds its value."""
    texts = labelled_texts(SMALL, seed=1)

    assert texts == labelled_texts(SMALL, seed=1)
    assert texts != labelled_texts(SMALL, seed=2)
    assert {text.language for text in texts} == set(LANGUAGES)
    assert len({name for text in texts for name in text.look_alikes}) == 10
    assert sum(not text.places for text in texts) > SMALL / 4
    assert all(0 <= place.start < place.end <= len(text.text) for text in texts for place in text.places)


def _scores(count: int) -> Scores:
    data = PersonalData()
    return scores_of(
        labelled_texts(count), lambda text: [(each.kind, each.start, each.end) for each in data.find(text)]
    )
