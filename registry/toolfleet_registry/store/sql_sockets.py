"""Makes the sockets of pg8000, so that one that fails is closed at once, and TLS costs nothing where there is none."""

import socket
import ssl
import struct
import traceback
from typing import Any

from sqlalchemy import Engine, event

_PORT = 5432
_MAY_IT_BE_TLS = struct.pack("!ii", 8, 80877103)  # its length and PostgreSQL's number for it


def close_failed(engine: Engine) -> Engine:
    """Have an engine close the socket of a connection that cannot be made; returns it.

    pg8000 asks first whether the server speaks TLS. If no answer comes it loses the socket, open. So it gets one of ours.
    """
    if engine.dialect.driver == "pg8000":
        event.listen(engine, "do_connect", _connect)
    return engine


def let_go(exc: BaseException | None) -> None:
    """Empty the frames that an error has come through: a socket that pg8000 has closed stays open while they refer to it."""
    while exc is not None:
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__context__


def _connect(dialect: Any, _record: Any, words: list[Any], options: dict[str, Any]) -> Any:
    """As SQLAlchemy does it, which is left to do it with a unix socket. Raises what the driver raises."""
    if options.get("unix_sock") is not None:
        return None
    address = options.get("host") or "localhost", options.get("port") or _PORT
    try:
        sock = socket.create_connection(address, options.get("timeout"), options.get("source_address"))
    except OSError as exc:
        raise dialect.loaded_dbapi.InterfaceError(str(exc)) from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if options.get("ssl_context") is None:
            sock = _encrypted_if_offered(sock, address[0])
            options = {**options, "ssl_context": False}  # it is done
        return dialect.loaded_dbapi.Connection(*words, **options, sock=sock)
    except BaseException:
        sock.close()
        raise


def _encrypted_if_offered(sock: socket.socket, host: str) -> socket.socket:
    """Return the socket with TLS if the server supports it, without verifying it: pg8000's own behaviour without options for TLS.

    But pg8000 reads every certificate authority of the machine first, for each connection, and then trusts any server.
    """
    sock.sendall(_MAY_IT_BE_TLS)
    if sock.recv(1) != b"S":
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock, server_hostname=host)
