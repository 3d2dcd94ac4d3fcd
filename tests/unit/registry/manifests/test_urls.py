"""Where a manifest is asked for: a plain URL is read as httpx reads it."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.redis.urls import PlainUrl, read_url

names = st.from_regex(r"([a-z0-9]{1,8}[.-]){0,3}[a-z][a-z0-9]{0,7}", fullmatch=True)
addresses = st.ip_addresses(v=4).map(str)
paths = st.from_regex(r"(/[A-Za-z0-9_~-]{1,6}){1,4}", fullmatch=True)
ports = st.one_of(st.just(""), st.integers(1, 59999).map(":{}".format), st.sampled_from([":80", ":443"]))


@given(st.sampled_from(["http", "https"]), st.one_of(names, addresses), ports, paths)
def test_a_plain_url_is_read_as_httpx_reads_it(scheme: str, host: str, port: str, path: str) -> None:
    """All that a request is made of."""
    text = f"{scheme}://{host}{port}{path}"
    plain, other = read_url(text), httpx.URL(text)

    assert isinstance(plain, PlainUrl)
    for part in (*PlainUrl._fields, "raw_host"):
        assert getattr(plain, part) == getattr(other, part), part


@pytest.mark.parametrize(
    "text", ["http://user:secret@host/manifest", "http://h\u00f6st/manifest", "http://[::1]/manifest"]
)
def test_any_other_is_read_by_httpx(text: str) -> None:
    """With a password, other letters, or an IPv6 address."""
    assert isinstance(read_url(text), httpx.URL)
