"""Which addresses count as public."""

from ipaddress import ip_address

import pytest

from modules.research.addresses import is_public


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "93.184.216.34",
        "172.32.0.1",
        "192.0.1.1",
        "168.63.129.17",
        "3fff:1000::1",
        "2606:4700::1111",
        "2a00:1450:4001:81b::200e",
    ],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    """IPv4 and IPv6."""
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",  # reaches this machine on Linux  # noqa: S104
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",  # where clouds keep credentials
        "100.64.0.1",  # between a provider and its customers
        "192.0.0.8",  # for protocols
        "192.0.0.192",  # a cloud's metadata again
        "168.63.129.16",  # and another one's services
        "192.0.2.1",  # documentation
        "198.18.0.1",  # benchmarks
        "224.0.0.1",  # multicast
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%1",
        "fc00::1",
        "fd12:3456::1",
        "fec0::1",  # site-local, of old
        "ff02::1",
        "2001:db8::1",  # documentation
        "3fff::1",  # and more of it
        "3fff:fff:ffff::1",
        "::ffff:127.0.0.1",  # an IPv4 address inside an IPv6 one
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",  # NAT64
        "2002:7f00:1::",  # 6to4
        "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo
    ],
)
def test_any_other_address_is_not(address: str) -> None:
    """One of this machine, of a private network, or one that nobody on the internet can have."""
    assert not is_public(ip_address(address))
