"""Describes the addresses of a module that several processes serve."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """One process that serves a module at `url`. A process that is started anew is another one, also at the same address.

    `has_shared_store`: whether what became of calls is in a store that all of the module's replicas share.
    """

    id: str
    url: str
    has_shared_store: bool = False
