"""An IPv6 address that embeds an IPv4 one is judged by what is inside, however it is written."""

from collections.abc import Callable
from ipaddress import IPv4Address

import pytest

from toolfleet_registry.directory.networks import ModuleNetworks

METADATA, INSIDE, OUTSIDE = "169.254.169.254", "10.1.2.3", "8.8.8.8"


def written(digits: str) -> str:
    """The IPv6 address with these hexadecimal digits, filled up with zeros."""
    return ":".join(digits.ljust(32, "0")[at : at + 4] for at in range(0, 32, 4))


def digits_of(address: str) -> str:
    return IPv4Address(address).packed.hex()


def local_nat64(address: str, length: int) -> str:
    """As RFC 6052 has it behind a prefix of this length, which leaves the octet 8 empty."""
    digits = "0064ff9b0001".ljust(length // 4, "0") + digits_of(address)
    return written(digits[:16] + "00" + digits[16:])


def teredo(server: str, client: str) -> str:
    """As RFC 4380 has it: the client's address is inverted."""
    inverted = int(digits_of(client), 16) ^ 0xFFFFFFFF
    return written(f"20010000{digits_of(server)}00000000{inverted:08x}")


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "mapped": lambda address: f"::ffff:{address}",
    "translated": lambda address: f"::ffff:0:{address}",
    "compatible": lambda address: f"::{address}",
    "NAT64": lambda address: f"64:ff9b::{address}",
    "local NAT64 /96": lambda address: f"64:ff9b:1::{address}",
    "another local NAT64 /96": lambda address: f"64:ff9b:1:fffe::{address}",
    "local NAT64 /64": lambda address: local_nat64(address, 64),
    "local NAT64 /56": lambda address: local_nat64(address, 56),
    "local NAT64 /48": lambda address: local_nat64(address, 48),
    "6to4": lambda address: written("2002" + digits_of(address)),
    "Teredo": lambda address: teredo(INSIDE, address),
    "Teredo's server": lambda address: teredo(address, INSIDE),
}
"""How an IPv4 address is written as an IPv6 one."""


@pytest.mark.parametrize("form", FORMS)
def test_metadata_is_refused_in_each_form(form: str) -> None:
    """Other addresses in the same form are allowed where no networks are named."""
    networks = ModuleNetworks(())
    for address, is_allowed in ((METADATA, False), ("100.100.100.200", False), (INSIDE, True), (OUTSIDE, True)):
        written = FORMS[form](address)
        assert (written, networks.allows(written)) == (written, is_allowed)
        url = f"http://[{written}]:80/" if ":" in written else f"http://{written}/"
        assert networks.allows_literal(url) == is_allowed


@pytest.mark.parametrize("form", ["plain", "mapped", "compatible", "NAT64", "local NAT64 /96", "6to4", "Teredo"])
def test_a_named_network_counts_for_what_is_inside(form: str) -> None:
    """Only what lies in it is allowed, in whichever form; a form whose parts say different things is refused."""
    networks = ModuleNetworks(("10.0.0.0/8",))

    assert networks.allows(FORMS[form](INSIDE))
    assert not networks.allows(FORMS[form](OUTSIDE))
    assert not networks.allows("64:ff9b:1:a01:2:300:808:808")


@pytest.mark.parametrize("address", ["::1", "2001:db8::1", "fd12:3456::a9fe:a9fe", "2606:4700::a9fe:a9fe"])
def test_other_addresses_are_judged_as_they_are(address: str) -> None:
    """They stand for no IPv4 address, whatever their last digits are."""
    assert ModuleNetworks(()).allows(address)
    assert ModuleNetworks((f"{address}/128",)).allows(address)
    assert not ModuleNetworks(("10.0.0.0/8",)).allows(address)
