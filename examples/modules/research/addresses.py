"""Which addresses belong to the public internet. Pure functions."""

from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could connect to it as well. Fails closed: an odd one is not public."""
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if isinstance(address, IPv6Address):
        # These carry an IPv4 address, which may be private. Those that begin with zeros count as reserved.
        return address.sixtofour is None and address.teredo is None and not address.is_site_local
    return True
