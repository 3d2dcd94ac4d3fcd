"""Which addresses belong to the public internet. Pure functions."""

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could connect to it as well. Fails closed: an odd one is not public."""
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, IPv6Address):
        # These carry an IPv4 address, which may be private. Those that begin with zeros count as reserved.
        return address.sixtofour is None and address.teredo is None and not address.is_site_local
    return True


# What Python takes for global, in some of its versions or in all.
_NOT_PUBLIC = (
    ip_network("192.0.0.0/24"),  # for protocols; at Oracle a machine's metadata are there
    ip_network("168.63.129.16/32"),  # Azure's own services, as each of its machines has them
    ip_network("3fff::/20"),  # documentation
)
