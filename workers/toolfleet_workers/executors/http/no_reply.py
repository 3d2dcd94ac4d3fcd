"""Says why a module's reply did not come, or not whole.

The class decides nothing but words: whether the module can have seen a request is for `SendProgress` to say::

    NoReply
    ├── NotConnected     nothing was sent
    │   └── Blocked      and the worker itself is the reason
    ├── ConnectionLost   the connection ended before the head of a response was there
    └── ReplyBroken      what came is no HTTP response from start to end
"""

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.outcomes import Attempt, Health, Outcome
from toolfleet_registry.policy.module_troubles import WORDS, Why
from toolfleet_workers.runner import unsuccessful


class NoReply(Exception):
    """A module's reply did not come, or not whole."""


class NotConnected(NoReply):
    """There is no connection; the message says why and names no address: a model reads it.

    `why`: the kind of reason.
    """

    def __init__(self, reason: str, why: Why = "away") -> None:
        super().__init__(reason)
        self.why: Why = why


class Blocked(NotConnected):
    """The worker cannot make connections now: it lacks descriptors, ports, memory, a route or a name service."""


class ConnectionLost(NoReply):
    """The connection ended before the module replied."""


class ReplyBroken(NoReply):
    """The module replied, but not with an HTTP response from start to end."""


def not_sent(call: PublishedCall, reason: str, unreached: Health, why: Why = "away") -> Attempt:
    """Return an attempt of which nothing was sent, or nothing to its intended process."""
    text = f"Tool execution error: {'' if reason == WORDS['refused'] else 'the module cannot be reached: '}{reason}"
    attempt = unsuccessful(call, Outcome.NOT_SENT, "module_unreachable", text)
    return Attempt(attempt.outcome, attempt.result, unreached=unreached, why=why)


def silent(seconds: float) -> NotConnected:
    """Return the error of a connection that nothing has accepted within `seconds`."""
    return NotConnected(f"{WORDS['silent']} (no connection within {max(seconds, 0):.3g}s)", "silent")


def lost(call: PublishedCall, exc: NoReply) -> Attempt:
    """Return an attempt that was sent, and whose reply was lost."""
    if isinstance(exc, ReplyBroken):
        text = "Tool execution error: the module's reply is invalid: not HTTP, or cut short"
        return unsuccessful(call, Outcome.UNKNOWN, "invalid_response", text)
    # Not module_unreachable: that code promises that nothing was executed.
    text = "Tool execution error: the connection to the module was lost before it replied"
    return unsuccessful(call, Outcome.UNKNOWN, "module_error", text)
