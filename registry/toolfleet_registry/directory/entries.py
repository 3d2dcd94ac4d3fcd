"""Describes one module as the fleet's directory has it, where it is and at which addresses it may be, and names the directory's scripts.

Each change of the directory is a script inside Redis: it happens as a whole or not at all.

The directory is a hash: module -> entry (JSON, with a signature before it if the fleet signs); next to it is a counter
of changes. Announcements of hosts are in another hash, and the times when they were heard in a sorted set. A change is
announced on the channel that tells of changed manifests, so that agents read both.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import ARTIFACTS, LOCAL, PROGRAMS, SCHEDULER, is_module_name
from toolfleet_registry.lua_files import script
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings

REPLACE = script("directory/replace")
"""Returns 1 if it has happened."""

FEED = script("directory/feed")
"""Returns for each what was there, if it was something else."""

ASK = script("directory/ask")
"""Returns the look's number."""

ANNOUNCE = script("directory/announce")
"""Returns Redis's time in milliseconds."""

HOSTS = script("directory/hosts")
"""Returns Redis's time in milliseconds, and of each host its member, what is stored, and 1 if it is live."""

LEAVE = script("directory/leave")
"""Returns how many other hosts of the module are live."""

FORGET_HOSTS = script("directory/forget_hosts")


SETTINGS = "settings"
"""The origin of an entry that workers and beat have put there, out of their settings."""

ADDED = "added"
"""The origin of an entry that an operator has added while the fleet was running."""

ANNOUNCED = "announced"
"""The origin of an entry that is not stored: hosts say that they serve the module."""

# Who can have a worker ask these gets the keys of its machine.
_REFUSED = tuple(
    ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local, and the metadata of nearly all clouds
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # metadata at AWS
        "fd20:ce::254/128",  # metadata at Google
        "100.100.100.200/32",  # metadata at Alibaba
        "168.63.129.16/32",  # Azure's own services
        "192.0.0.192/32",  # metadata at Oracle
    )
)
# What IPv6 addresses lie in that end with the IPv4 address which they stand for.
_ENDING = tuple(
    ip_network(network)
    for network in (
        "::/96",  # compatible with IPv4
        "::ffff:0:0/96",  # mapped
        "::ffff:0:0:0/96",  # translated
        "64:ff9b::/96",  # NAT64
    )
)
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_NO_HOSTS = ip_network("0.0.0.0/8")
_RESOLVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One process that serves a module at `url`. A restarted process is another replica, even at the same address.

    `has_shared_store`: whether the outcomes of calls are in a store that all of the module's replicas share.
    """

    id: str
    url: str
    has_shared_store: bool = False


class ModuleEntry(BaseModel):
    """The directory's entry of one module.

    A reader of an earlier version ignores the fields that a later one has added.

    `url` is `None` if the module's tools run in the workers. `origin` is `settings`, `added` or `announced`.
    `timeout_seconds` is the limit of its calls, `None`: that of its lane. `scales_from_zero`: its lane may have no
    worker at times, and calls wait for one. `public_only`: it was added over HTTP, and may be at no loopback or private
    address that `module_networks` does not name. Times are seconds since the epoch; a module with `removed_at` takes no
    new calls, and waiting calls are run for `drain_seconds` after it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    module: str
    url: str | None = None
    origin: str = ADDED
    slow: bool = False
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    scales_from_zero: bool = False
    public_only: bool = False
    added_at: float | None = None
    removed_at: float | None = None
    drain_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)

    @field_validator("module")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_module_name(name):
            raise ValueError("a module's name may have letters, digits, '_' and '-' only")
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not is_http_url(url):
            raise ValueError("a module needs an http:// or https:// URL with a host")
        return None if url is None else url.rstrip("/")

    @property
    def is_static(self) -> bool:
        """Whether the entry is from the settings of workers or beat."""
        return self.origin == SETTINGS

    @property
    def is_removed(self) -> bool:
        """Whether the module takes no new calls."""
        return self.removed_at is not None

    @property
    def lane(self) -> Literal["fast", "slow"]:
        """The lane of the workers that run its calls."""
        return "slow" if self.slow else "fast"

    def is_over(self, now: float) -> bool:
        """Return whether the module is removed and its waiting calls are no longer run."""
        return self.removed_at is not None and now >= self.removed_at + self.drain_seconds

    def text(self) -> str:
        """Return the stored form: the same text for the same entry, in every process."""
        return self.model_dump_json(exclude_defaults=True)


class AnnouncedModule(ModuleEntry):
    """A module that its hosts announce. `url` is that of the deciding host, or of the last one that was.

    `replicas` are the hosts that count, none while the module is away. `digest` is one of what they offer.
    """

    origin: str = ANNOUNCED
    digest: str = ""
    replicas: tuple[Replica, ...] = ()


def static_entries(settings: Settings) -> dict[str, ModuleEntry]:
    """Return the modules of a worker's or beat's settings, as the directory has them: without the passwords of their addresses."""
    urls: dict[str, str | None] = {name: plain_url(url) for name, url in settings.module_services.items()}
    own: dict[str, Any] = {
        LOCAL: settings.local_tools,
        SCHEDULER: settings.scheduler,
        ARTIFACTS: settings.artifact_store,
        PROGRAMS: settings.programs,
    }
    urls |= dict.fromkeys(name for name, is_on in own.items() if is_on)
    return {
        name: ModuleEntry(
            module=name,
            url=url,
            origin=SETTINGS,
            slow=name in settings.slow_modules,
            timeout_seconds=module_limit(name, settings),
        )
        for name, url in urls.items()
    }


def module_limit(module: str, settings: Settings) -> float:
    """Return the limit of a module's calls, in seconds: the setting for it, or its lane's."""
    if module in settings.module_timeouts:
        return settings.module_timeouts[module]
    is_slow = module in settings.slow_modules
    return settings.tool_execution_timeout if is_slow else settings.default_timeout


def plain_url(url: str) -> str:
    """Return the URL without a user and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class ModuleNetworks:
    """The networks of the setting `module_networks`; without any, all networks except those where no module should be."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._allowed = tuple(ip_network(network) for network in networks)

    def allows(self, address: str) -> bool:
        """Return whether a module may be at this IP address; false for an invalid one."""
        try:
            found = _meant(ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        if self._allowed:
            return all(any(each in network for network in self._allowed) for each in found)
        return not any(each in network for each in found for network in _REFUSED)

    def allows_public(self, address: str) -> bool:
        """Return whether a module added over HTTP may be at this IP address: not on this machine or in a private network that the setting does not name."""
        if self._allowed or not self.allows(address):
            return self.allows(address)
        found = _meant(ip_address(address.partition("%")[0]))
        return all(each.is_global and not each.is_multicast for each in found)

    def allows_literal(self, url: str, *, public_only: bool = False) -> bool:
        """Return whether a URL is allowed as far as its literal address says; a host name is checked when it is resolved."""
        allows = self.allows_public if public_only else self.allows
        host = urlsplit(url).hostname or ""
        try:
            literal = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (socket.gaierror, UnicodeError):
            return True
        return all(allows(str(each[4][0])) for each in literal)

    async def fault(self, url: str, *, public_only: bool = False) -> str | None:
        """Return why a module may not be at this URL; a host that cannot be resolved now is checked on connecting."""
        allows = self.allows_public if public_only else self.allows
        host = urlsplit(url).hostname or ""
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            return None
        refused = sorted({str(each[4][0]) for each in found if not allows(str(each[4][0]))})
        return self.reason(refused[0]) if refused else None

    def reason(self, address: str) -> str:
        """Return the reason why a module may not be at this address."""
        if self._allowed:
            return f"its address {address} is not in TOOLFLEET_MODULE_NETWORKS"
        what = "no public one" if self.allows(address) else "a link-local or metadata one"
        return f"its address {address} is {what}: TOOLFLEET_MODULE_NETWORKS must name its network if it is meant"


def _meant(address: IPv4Address | IPv6Address) -> Sequence[IPv4Address | IPv6Address]:
    """Return the IPv4 addresses that an IPv6 one may stand for; itself if it stands for none. All must be allowed."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.teredo is not None:
        return address.teredo  # its server, and itself behind its NAT
    if address.sixtofour is not None:
        return [address.sixtofour]
    found, octets = list[IPv4Address](), address.packed
    if any(address in network for network in _ENDING):
        found = [IPv4Address(octets[12:])]
    elif address in _LOCAL_NAT64:  # RFC 6052: behind a prefix of any length, and never in the octet 8
        parts = octets[:8] + octets[9:]
        found = [IPv4Address(octets[12:]), *(IPv4Address(parts[start : start + 4]) for start in (6, 7, 8))]
    return [each for each in found if each not in _NO_HOSTS] or [address]  # `::1` stands for itself
