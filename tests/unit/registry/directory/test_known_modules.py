"""What a process knows of modules, which hosts count, and which addresses are allowed."""

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest

from toolfleet_registry.directory.entries import SETTINGS, ModuleEntry, ModuleNetworks
from toolfleet_registry.directory.hosts import (
    TTL_SECONDS,
    Announcement,
    JudgedHosts,
    SeenHost,
    announce_key,
    hosts_seal,
    judge,
    readers_seal,
)
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_registry.settings import Settings


def known(**settings: Any) -> KnownModules:
    return KnownModules(Settings(**settings), clock=lambda: 100.0)


def entry(module: str = "owls", url: str | None = "http://owls.test", **fields: Any) -> dict[str, ModuleEntry]:
    return {module: ModuleEntry(module=module, url=url, **fields)}


def test_a_module_that_was_added_is_called_as_if_the_settings_had_it() -> None:
    """At its address, in its lane, within its limit."""
    modules = known(module_services={"git": "http://git.test"})

    assert modules.take(entry(slow=True, timeout_seconds=3))
    assert modules.names == modules.served == {"git", "owls"}
    assert modules.settings.module_services == {"git": "http://git.test", "owls": "http://owls.test"}
    assert "owls" in modules.settings.slow_modules
    assert modules.settings.module_timeouts == {"owls": 3}
    assert not modules.take(entry(slow=True, timeout_seconds=3))


def test_a_name_in_the_settings_is_never_overridden() -> None:
    """Neither its address, nor its lane, nor its limit."""
    modules = known(module_services={"owls": "http://mine.test"})

    assert not modules.take(entry(slow=True, timeout_seconds=3))
    assert modules.settings.module_services == {"owls": "http://mine.test"}


def test_of_two_processes_settings_the_older_address_is_in_effect() -> None:
    """It stands in the directory."""
    modules = known(module_services={"owls": "http://mine.test"})

    assert modules.take(entry(url="http://older.test", origin=SETTINGS))
    assert modules.settings.module_services == {"owls": "http://older.test"}


def test_a_worker_serves_no_module_of_anothers_settings() -> None:
    """It may not reach it; agents may call it."""
    modules = known()
    modules.take(entry(origin=SETTINGS))

    assert modules.names == {"owls"}
    assert not modules.served
    assert modules.settings.module_services == {}


@pytest.mark.parametrize(("removed_at", "served"), [(95.0, {"owls"}), (80.0, set())])
def test_a_removed_module_is_served_until_it_is_drained(removed_at: float, served: set[str]) -> None:
    """It takes no new calls from its removal on; what waits after its time is ended."""
    modules = known()
    modules.take(entry(removed_at=removed_at, drain_seconds=10))

    assert modules.names == frozenset()
    assert modules.served == served
    assert modules.ending == {"owls"} - served


def test_what_the_settings_call_slow_is_as_the_directory_says() -> None:
    """One word for all processes: the directory's."""
    modules = known(slow_modules={"owls", "git"})
    modules.take(entry())

    assert modules.settings.slow_modules == {"git"}


NOW = 1_000_000.0
KEY, OLD_KEY = "a secret of more than thirty-two characters", "another one of more than thirty-two characters"


def host(name: str, *, first: int, digest: str = "one", at: float = NOW, is_live: bool = True) -> SeenHost:
    said = Announcement(module="owls", id=f"host-{name}", url=f"http://{name}.test", digest=digest, at=at, counter=1)
    return SeenHost(said, first, is_live)


def judged(*hosts: SeenHost, taken: str | None = None) -> JudgedHosts:
    return judge(hosts, now=NOW, taken={"owls": taken} if taken else {}, away_seconds=3600)


def counting(found: JudgedHosts) -> list[str]:
    return [replica.id for replica in found.modules["owls"].replicas]


def test_hosts_of_one_version_are_replicas() -> None:
    """In the order in which they came; the first one's address is the module's."""
    found = judged(host("b", first=2), host("a", first=1), host("c", first=3))

    assert counting(found) == ["host-a", "host-b", "host-c"]
    assert found.modules["owls"].url == "http://a.test"
    assert not found.refused


def test_another_version_is_refused_until_the_last_host_of_the_older_one_is_gone() -> None:
    """It is listed with the reason meanwhile, and the module has an address at each moment."""
    old, older, new = host("b", first=2), host("a", first=1), host("c", first=3, digest="two")

    assert counting(judged(older, old, new)) == ["host-a", "host-b"]
    assert counting(judged(old, new)) == ["host-b"]
    assert judged(old, new).refused[0].reason == "serves other tools than http://b.test, which is there longer"
    assert counting(judged(new)) == ["host-c"]


def test_who_agrees_with_the_deciding_host_by_now_counts() -> None:
    """As after a reload of the same change everywhere."""
    assert counting(judged(host("a", first=1, digest="two"), host("b", first=2, digest="two"))) == ["host-a", "host-b"]


@pytest.mark.parametrize("at", [NOW - TTL_SECONDS - 2, NOW + 2, 0.0])
def test_a_heartbeat_of_another_time_keeps_nobody_alive(at: float) -> None:
    """However live Redis takes its host to be, and however long that one has been there."""
    found = judged(host("kept", first=1, at=at), host("live", first=2))

    assert counting(found) == ["host-live"]
    assert found.refused[0].reason.startswith("its heartbeat is an old one")


def test_a_module_whose_hosts_are_gone_is_away() -> None:
    """At its last address, without any host; for as long as a manifest lives, and no longer."""
    found = judged(host("a", first=1, at=NOW - 3000, is_live=False), host("b", first=2, at=NOW - 2000, is_live=False))

    assert (found.modules["owls"].url, found.modules["owls"].replicas) == ("http://b.test", ())
    assert not judged(host("a", first=1, at=NOW - 3601, is_live=False)).modules


def test_a_module_of_the_settings_is_nobodys_to_announce() -> None:
    """Whoever does is listed."""
    found = judged(host("a", first=1), host("b", first=2, is_live=False), taken="the settings have it")

    assert not found.modules
    assert [(one.id, one.reason) for one in found.refused] == [("host-a", "the settings have it")]


def test_a_host_signs_for_its_own_module_only() -> None:
    """With a key of today, or of the one before."""
    settings = Settings(signing_key=KEY, signing_keys_old=(OLD_KEY,))
    for key in (KEY, OLD_KEY):
        signed = hosts_seal(announce_key(key, "owls")).sign("hoo")
        assert readers_seal(settings, "owls").read(signed) == "hoo"
        with pytest.raises(MessageRefused):
            readers_seal(settings, "crows").read(signed)


@pytest.mark.parametrize("key", ["x", "a" * 42, "a" * 44, "€" * 43, KEY])
def test_what_is_no_key_is_one_clear_error(key: str) -> None:
    """It says which command prints one."""
    with pytest.raises(SettingsError, match="toolfleet modules key NAME --announce"):
        hosts_seal(key)


@pytest.mark.parametrize(
    "fields",
    [{"module": "local"}, {"module": "a b"}, {"url": "ftp://x"}, {"id": "a b c d e f"}, {"at": -1}, {"counter": "x"}],
)
def test_what_is_no_heartbeat_is_refused(fields: dict[str, object]) -> None:
    """A name of the fleet's own among it."""
    whole = host("a", first=1).said.model_dump()
    with pytest.raises(ValueError, match="validation error"):
        Announcement.model_validate(whole | fields)


METADATA, INSIDE, OUTSIDE = "169.254.169.254", "10.1.2.3", "8.8.8.8"


def written(digits: str) -> str:
    """The IPv6 address with these hexadecimal digits, filled up with zeros."""
    return ":".join(digits.ljust(32, "0")[at : at + 4] for at in range(0, 32, 4))


def digits_of(address: str) -> str:
    return IPv4Address(address).packed.hex()


def local_nat64(address: str, length: int) -> str:
    """As RFC 6052 has it behind a prefix of this length, which leaves the octet 8 empty."""
    digits = "0064ff9b0001".ljust(length // 4, "0") + digits_of(address)
    return written(digits[:16] + "00" + digits[16:])


def teredo(server: str, client: str) -> str:
    """As RFC 4380 has it: the client's address is inverted."""
    inverted = int(digits_of(client), 16) ^ 0xFFFFFFFF
    return written(f"20010000{digits_of(server)}00000000{inverted:08x}")


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "mapped": lambda address: f"::ffff:{address}",
    "translated": lambda address: f"::ffff:0:{address}",
    "compatible": lambda address: f"::{address}",
    "NAT64": lambda address: f"64:ff9b::{address}",
    "local NAT64 /96": lambda address: f"64:ff9b:1::{address}",
    "another local NAT64 /96": lambda address: f"64:ff9b:1:fffe::{address}",
    "local NAT64 /64": lambda address: local_nat64(address, 64),
    "local NAT64 /56": lambda address: local_nat64(address, 56),
    "local NAT64 /48": lambda address: local_nat64(address, 48),
    "6to4": lambda address: written("2002" + digits_of(address)),
    "Teredo": lambda address: teredo(INSIDE, address),
    "Teredo's server": lambda address: teredo(address, INSIDE),
}
"""How an IPv4 address is written as an IPv6 one."""


@pytest.mark.parametrize("form", FORMS)
def test_metadata_is_refused_in_each_form(form: str) -> None:
    """Other addresses in the same form are allowed where no networks are named."""
    networks = ModuleNetworks(())
    for address, is_allowed in ((METADATA, False), ("100.100.100.200", False), (INSIDE, True), (OUTSIDE, True)):
        written = FORMS[form](address)
        assert (written, networks.allows(written)) == (written, is_allowed)
        url = f"http://[{written}]:80/" if ":" in written else f"http://{written}/"
        assert networks.allows_literal(url) == is_allowed


@pytest.mark.parametrize("form", ["plain", "mapped", "compatible", "NAT64", "local NAT64 /96", "6to4", "Teredo"])
def test_a_named_network_counts_for_what_is_inside(form: str) -> None:
    """Only what lies in it is allowed, in whichever form; a form whose parts say different things is refused."""
    networks = ModuleNetworks(("10.0.0.0/8",))

    assert networks.allows(FORMS[form](INSIDE))
    assert not networks.allows(FORMS[form](OUTSIDE))
    assert not networks.allows("64:ff9b:1:a01:2:300:808:808")


@pytest.mark.parametrize("address", ["::1", "2001:db8::1", "fd12:3456::a9fe:a9fe", "2606:4700::a9fe:a9fe"])
def test_other_addresses_are_judged_as_they_are(address: str) -> None:
    """They stand for no IPv4 address, whatever their last digits are."""
    assert ModuleNetworks(()).allows(address)
    assert ModuleNetworks((f"{address}/128",)).allows(address)
    assert not ModuleNetworks(("10.0.0.0/8",)).allows(address)
