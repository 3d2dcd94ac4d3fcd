"""Says why a module's reply did not come, or not whole.

The class decides nothing but words: whether the module can have seen a request is for `SendProgress` to say::

    NoReply
    ├── NotConnected     nothing was sent
    │   └── Blocked      and the worker itself is the reason
    ├── ConnectionLost   the connection ended before the head of a response was there
    └── ReplyBroken      what came is no HTTP response from start to end
"""


class NoReply(Exception):
    """A module's reply did not come, or not whole."""


class NotConnected(NoReply):
    """There is no connection; the message says why and names no address: a model reads it."""


class Blocked(NotConnected):
    """The worker cannot make connections now: it lacks descriptors, ports, memory, a route or a name service."""


class ConnectionLost(NoReply):
    """The connection ended before the module replied."""


class ReplyBroken(NoReply):
    """The module replied, but not with an HTTP response from start to end."""
