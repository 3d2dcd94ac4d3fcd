"""What a process writes, without secrets: also where a value comes in pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.serving.hidden_output import HiddenStream
from toolfleet_modules.hosts.serving.secrets import Secrets

SECRETS = Secrets({"A": "abcdefgh", "B": "hijklmnop", "PEM": "-----BEGIN\nMIIEowIBAAKCAQEA\n-----END"})
TEXT = b"x abcdefgh, hijklmnop, abcdefghijklmnop -----BEGIN\nMIIEowIBAAKCAQEA\n-----END abcdefg\n"


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_no_value_is_shown_however_it_is_cut(cuts: list[int]) -> None:
    """Nor half of one; everything else is shown as it is."""
    stream = HiddenStream(SECRETS)
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [stream.feed(TEXT[at:to]) for at, to in pairwise(places)]
    shown = b"".join([*pieces, stream.end()])

    assert shown == b"x [secret A], [secret B], abcdefg[secret B] [secret PEM] abcdefg\n"


def test_a_line_without_a_value_is_shown_at_once() -> None:
    """Nothing waits for the next one."""
    stream = HiddenStream(SECRETS)

    assert stream.feed(b"owls\n") == b"owls\n"
    assert stream.feed(b"abcd") == b""
    assert stream.feed(b"\n") == b"abcd\n"
