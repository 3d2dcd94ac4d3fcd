"""Tells a message that was surely not sent from one that may have been."""

import socket


def was_refused(exc: BaseException | None) -> bool:
    """Whether no connection came about, by what kombu raised: then nothing can have been sent."""
    while exc is not None:
        if isinstance(exc, ConnectionRefusedError | socket.gaierror):
            return True
        exc = exc.__cause__ or exc.__context__
    return False
