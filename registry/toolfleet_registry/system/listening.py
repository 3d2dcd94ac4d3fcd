"""Opens the socket of a server before anything else of it is started."""

import socket

from toolfleet_registry.errors import SettingsError


def listening_socket(address: str, port: int) -> socket.socket:
    """The socket, bound; port 0 is one that is free. Raises `SettingsError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio turns off Nagle's algorithm only for sockets that name their protocol; events would wait 40 ms for an acknowledgement.
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError as exc:
        listener.close()
        raise SettingsError(f"Nothing can listen at {address}:{port}: {exc.strerror or exc}.") from exc
    return listener
