"""Where a module's URL leads, and what each request to it begins with."""

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.redis.urls import PLAIN_HTTP_URL
from toolfleet_workers.executors.request import Target

HEADERS = {"User-Agent": "toolfleet"}

names = st.from_regex(r"([a-z0-9]{1,8}[.-]){0,3}[a-z][a-z0-9]{0,7}", fullmatch=True)
addresses = st.ip_addresses(v=4).map(str)
paths = st.from_regex(r"(/[A-Za-z0-9_~.-]{1,6}){1,4}", fullmatch=True)
ports = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format), st.sampled_from([":80", ":443"]))


@given(st.sampled_from(["http", "https"]), st.one_of(names, addresses), ports, paths)
def test_a_plain_url_is_read_as_httpx_reads_it(scheme: str, host: str, port: str, path: str) -> None:
    """Calls go where discovery looks, and say the same of it."""
    url = f"{scheme}://{host}{port}{path}"

    assert Target.of(url, HEADERS) == Target._at(httpx.URL(url), HEADERS, "POST")


@pytest.mark.parametrize(
    ("url", "is_plain"),
    [
        ("http://127.0.0.1:8001/execute", True),
        ("https://tools.example.com/owls/v2/execute", True),
        ("http://user:secret@host/execute", False),
        ("http://Host/execute", False),
        ("http://host./execute", False),
        ("http://[::1]:8001/execute", False),
        ("http://höst/execute", False),
        ("http://host/a/../execute", False),
        ("http://host/a%20b/execute", False),
        ("http://host/execute?version=2", False),
        ("http://host:0/execute", False),
        ("http://host:60000/execute", False),
        ("http://10.0.0.256/execute", False),
        ("http://10.0.0.01/execute", False),
        ("http://10.1/execute", False),
        ("http://xn--hst-sna/execute", False),
    ],
)
def test_what_may_be_written_in_another_way_is_left_to_httpx(url: str, is_plain: bool) -> None:
    """Names that are no ASCII, users, dots, escapes and queries."""
    assert (re.fullmatch(PLAIN_HTTP_URL, url) is not None) == is_plain


def test_a_request_to_a_plain_url_names_its_port_only_if_it_is_not_the_usual_one() -> None:
    """As RFC 9110 has it for `Host`."""
    assert Target.of("http://host:80/execute", {}).head == b"POST /execute HTTP/1.1\r\nHost: host\r\n"
    assert Target.of("http://host:81/execute", {}).head == b"POST /execute HTTP/1.1\r\nHost: host:81\r\n"
