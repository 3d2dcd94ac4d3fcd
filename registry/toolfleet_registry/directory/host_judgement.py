"""Decides which of the hosts that announce a module serve it. No Redis, no clock.

The host that is there longest decides what the module offers, and others count while they offer the same: in a rolling upgrade
the new version takes over when the last old host is gone, and the module has an address at each moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolfleet_registry.directory.announcements import TTL_SECONDS, Announcement
from toolfleet_registry.directory.entries import AnnouncedModule
from toolfleet_registry.directory.replicas import Replica

_CLOCK_SECONDS = 1.0  # by which two clocks may differ, and a heartbeat be under way


@dataclass(frozen=True, slots=True)
class SeenHost:
    """A host's last announcement, and when it was first heard, in ms by Redis's clock.

    `is_live`: it was heard recently.
    """

    said: Announcement
    first_ms: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class RefusedHost:
    """A host that does not count, and why, as a sentence without its subject: "serves other tools than http://…"."""

    module: str
    id: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class JudgedHosts:
    """The modules that are announced, and those who announce in vain."""

    modules: Mapping[str, AnnouncedModule] = field(default_factory=dict[str, AnnouncedModule])
    refused: Sequence[RefusedHost] = ()


def judge(hosts: Iterable[SeenHost], *, now: float, taken: Mapping[str, str], away_seconds: float) -> JudgedHosts:
    """Judge all hosts at `now`, Redis's time in seconds. `taken`: why a module cannot be announced, by name.

    A module whose hosts are all gone is known as away for `away_seconds`.
    """
    modules, refused = dict[str, AnnouncedModule](), list[RefusedHost]()
    by_module = dict[str, list[SeenHost]]()
    for host in hosts:
        by_module.setdefault(host.said.module, []).append(host)
    for name, seen in sorted(by_module.items()):
        live = sorted((host for host in seen if host.is_live), key=lambda host: (host.first_ms, host.said.id))
        if name in taken:
            refused += [_refused(host.said, taken[name]) for host in live]
            continue
        timely = [host.said for host in live if is_timely(host.said, now)]
        refused += [_refused(host.said, LATE) for host in live if not is_timely(host.said, now)]
        if timely:
            modules[name] = _module(timely[0], [said for said in timely if said.digest == timely[0].digest])
            other = f"serves other tools than {timely[0].url}, which is there longer"
            refused += [_refused(said, other) for said in timely if said.digest != timely[0].digest]
        elif last := max(
            (host.said for host in seen if abs(now - host.said.at) < away_seconds), key=_age, default=None
        ):
            modules[name] = _module(last, ())
    return JudgedHosts(modules, tuple(refused))


LATE = "its heartbeat is an old one, or of a time to come"


def is_timely(said: Announcement, now: float) -> bool:
    """Return whether a heartbeat is recent, not a replayed one: the host was alive within the TTL."""
    return now - TTL_SECONDS - _CLOCK_SECONDS < said.at < now + _CLOCK_SECONDS


def _module(deciding: Announcement, counting: Sequence[Announcement]) -> AnnouncedModule:
    return AnnouncedModule(
        module=deciding.module,
        url=deciding.url,
        slow=deciding.slow,
        timeout_seconds=deciding.timeout_seconds,
        digest=deciding.digest,
        replicas=tuple(Replica(said.id, said.url, said.has_shared_store) for said in counting),
    )


def _refused(said: Announcement, reason: str) -> RefusedHost:
    return RefusedHost(said.module, said.id, said.url, reason)


def _age(said: Announcement) -> float:
    return said.at
