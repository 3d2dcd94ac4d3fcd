"""Decides at which addresses a module may be that was added to a running fleet. Fails closed."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

# Who can have a worker ask these gets the keys of its machine.
_REFUSED = tuple(
    ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local, and the metadata of nearly all clouds
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # metadata at AWS
        "fd20:ce::254/128",  # metadata at Google
        "100.100.100.200/32",  # metadata at Alibaba
        "168.63.129.16/32",  # Azure's own services
        "192.0.0.192/32",  # metadata at Oracle
    )
)
# What IPv6 addresses lie in that end with the IPv4 address which they stand for.
_ENDING = tuple(
    ip_network(network)
    for network in (
        "::/96",  # compatible with IPv4
        "::ffff:0:0/96",  # mapped
        "::ffff:0:0:0/96",  # translated
        "64:ff9b::/96",  # NAT64
    )
)
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_NO_HOSTS = ip_network("0.0.0.0/8")
_RESOLVE_SECONDS = 5.0


class ModuleNetworks:
    """The networks of the setting `module_networks`; without any, all networks except those where no module should be."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._allowed = tuple(ip_network(network) for network in networks)

    def allows(self, address: str) -> bool:
        """Return whether a module may be at this IP address; false for an invalid one."""
        try:
            found = _meant(ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        if self._allowed:
            return all(any(each in network for network in self._allowed) for each in found)
        return not any(each in network for each in found for network in _REFUSED)

    def allows_public(self, address: str) -> bool:
        """Return whether a module added over HTTP may be at this IP address: not on this machine or in a private network that the setting does not name."""
        if self._allowed or not self.allows(address):
            return self.allows(address)
        found = _meant(ip_address(address.partition("%")[0]))
        return all(each.is_global and not each.is_multicast for each in found)

    def allows_literal(self, url: str, *, public_only: bool = False) -> bool:
        """Return whether a URL is allowed as far as its literal address says; a host name is checked when it is resolved."""
        allows = self.allows_public if public_only else self.allows
        host = urlsplit(url).hostname or ""
        try:
            literal = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (socket.gaierror, UnicodeError):
            return True
        return all(allows(str(each[4][0])) for each in literal)

    async def fault(self, url: str, *, public_only: bool = False) -> str | None:
        """Return why a module may not be at this URL; a host that cannot be resolved now is checked on connecting."""
        allows = self.allows_public if public_only else self.allows
        host = urlsplit(url).hostname or ""
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            return None
        refused = sorted({str(each[4][0]) for each in found if not allows(str(each[4][0]))})
        return self.reason(refused[0]) if refused else None

    def reason(self, address: str) -> str:
        """Return the reason why a module may not be at this address."""
        if self._allowed:
            return f"its address {address} is not in TOOLFLEET_MODULE_NETWORKS"
        what = "no public one" if self.allows(address) else "a link-local or metadata one"
        return f"its address {address} is {what}: TOOLFLEET_MODULE_NETWORKS must name its network if it is meant"


def _meant(address: IPv4Address | IPv6Address) -> Sequence[IPv4Address | IPv6Address]:
    """The IPv4 addresses that an IPv6 one may stand for; itself if it stands for none. All must be allowed."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.teredo is not None:
        return address.teredo  # its server, and itself behind its NAT
    if address.sixtofour is not None:
        return [address.sixtofour]
    found, octets = list[IPv4Address](), address.packed
    if any(address in network for network in _ENDING):
        found = [IPv4Address(octets[12:])]
    elif address in _LOCAL_NAT64:  # RFC 6052: behind a prefix of any length, and never in the octet 8
        parts = octets[:8] + octets[9:]
        found = [IPv4Address(octets[12:]), *(IPv4Address(parts[start : start + 4]) for start in (6, 7, 8))]
    return [each for each in found if each not in _NO_HOSTS] or [address]  # `::1` stands for itself
