"""What a process writes, without secrets: also where a value comes in pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.secrets import HiddenStream, Secrets

SECRETS = Secrets({"A": "abcdefgh", "B": "hijklmnop", "PEM": "-----BEGIN\nMIIEowIBAAKCAQEA\n-----END"})
TEXT = b"x abcdefgh, hijklmnop, abcdefghijklmnop -----BEGIN\nMIIEowIBAAKCAQEA\n-----END abcdefg\n"


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_no_value_is_shown_however_it_is_cut(cuts: list[int]) -> None:
    """Nor half of one, also where one begins in another's end; everything else is shown as it is."""
    stream = HiddenStream(SECRETS)
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [stream.feed(TEXT[at:to]) for at, to in pairwise(places)]
    shown = b"".join([*pieces, stream.end()])

    assert shown == b"x [secret A], [secret B], [secret A] [secret PEM] abcdefg\n"


ENCODED = b'x abcd\\u0065fgh, "%61bc%64efgh" &#97;bcdefgh YWJjZGVmZ2g= y\n'


@given(st.lists(st.integers(0, len(ENCODED)), max_size=20))
def test_no_encoded_value_is_shown_however_it_is_cut(cuts: list[int]) -> None:
    """Its word is held back until it is there as a whole."""
    stream = HiddenStream(SECRETS)
    places = [0, *sorted(cuts), len(ENCODED)]
    pieces = [stream.feed(ENCODED[at:to]) for at, to in pairwise(places)]

    assert b"".join([*pieces, stream.end()]) == b'x [secret A], "[secret A]" [secret A] [secret A]g= y\n'


def test_a_line_without_a_value_is_shown_at_once() -> None:
    """Nothing waits for the next one."""
    stream = HiddenStream(SECRETS)

    assert stream.feed(b"owls\n") == b"owls\n"
    assert stream.feed(b"abcd") == b""
    assert stream.feed(b"\n") == b"abcd\n"
