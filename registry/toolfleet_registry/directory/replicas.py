"""Describes the addresses of a module that several processes serve."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """One process that serves a module at `url`. A restarted process is another replica, even at the same address.

    `has_shared_store`: whether the outcomes of calls are in a store that all of the module's replicas share.
    """

    id: str
    url: str
    has_shared_store: bool = False
