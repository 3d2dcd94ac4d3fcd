"""Which hosts count: the oldest decides, others agree with it, and nobody is kept alive by what was said long ago."""

import pytest

from toolfleet_registry.directory.announcements import TTL_SECONDS, Announcement, announce_key, hosts_seal, readers_seal
from toolfleet_registry.directory.host_judgement import JudgedHosts, SeenHost, judge
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_registry.settings import Settings

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
