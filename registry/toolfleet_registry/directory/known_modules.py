"""Knows the modules that there are for one process: those of its settings, and those of the fleet's directory."""

from collections.abc import Callable, Mapping

from toolfleet_registry.directory.entries import AnnouncedModule, ModuleEntry, ModuleNetworks, Replica, plain_url
from toolfleet_registry.headers import ModuleHeaders, headers_by_module
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock


class KnownModules:
    """The modules that this process knows. `take` replaces the whole state; queries cost no round trip.

    `probes_everywhere`: it may probe any module of the directory, as an agent does that finds no fleet. A worker probes
    the modules of its own settings, and added ones.
    """

    def __init__(
        self, settings: Settings, *, probes_everywhere: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        self._own = settings
        self._probes_everywhere = probes_everywhere
        self._clock = clock or fleet_clock.now
        self._networks = ModuleNetworks(settings.module_networks)
        self.entries: Mapping[str, ModuleEntry] = {}
        """The directory's entries, by module."""
        self._own_headers = headers_by_module(settings.module_headers)
        self.headers: Mapping[str, ModuleHeaders] = self._own_headers
        """What goes with each request to a module.

        As with a password in a module's URL, nothing of it goes to another address than our settings', unless a directory names that
        in which entries are signed."""
        self.settings = settings
        """The settings as if they had named all of these modules, with their addresses, lanes and limits."""
        self.names = settings.modules
        """The modules that can be called."""
        self.served = settings.modules
        """Those that a worker with these settings can run calls of."""
        self.replicas: Mapping[str, tuple[Replica, ...]] = {}
        """The processes that serve a module, of those that announce themselves; a module that is not here has one address."""
        self.ending = frozenset[str]()
        """Those that were removed: what waits for them is to be ended."""

    @property
    def guards(self) -> dict[str, Callable[[str], bool]]:
        """The checks of IP addresses, for each module that was added or announces itself."""
        over_http = {name for name, entry in self.entries.items() if entry.public_only}
        allows, allows_public = self._networks.allows, self._networks.allows_public
        return {name: allows_public if name in over_http else allows for name in self.added}

    @property
    def added(self) -> frozenset[str]:
        """The served modules that no setting here names: their addresses must be checked."""
        return self.served - self._own.modules

    def take(self, entries: Mapping[str, ModuleEntry]) -> bool:
        """Hold what the directory says now. Returns whether this process has other modules than before, or otherwise."""
        now, own = self._clock(), self._own.modules
        entries = {name: self._in_lane(entry) for name, entry in entries.items()}
        theirs = {name: entry for name, entry in entries.items() if name not in own}
        added = {name: entry for name, entry in theirs.items() if not entry.is_static}
        served = own | {name for name, entry in added.items() if not entry.is_over(now)}
        names = own | {name for name, entry in theirs.items() if not entry.is_removed}
        ending = frozenset(added.keys() - served)
        settings = self._settings_with(theirs, served, entries)
        headers = self._headers_with(entries)
        replicas = {name: entry.replicas for name, entry in theirs.items() if isinstance(entry, AnnouncedModule)}
        before = self.settings, self.names, self.served, self.ending, self.headers, self.replicas
        self.entries, self.replicas = entries, {name: found for name, found in replicas.items() if found}
        self.settings, self.names, self.served, self.ending, self.headers = settings, names, served, ending, headers
        return before != (settings, names, served, ending, headers, self.replicas)

    def _in_lane(self, entry: ModuleEntry) -> ModuleEntry:
        """Return the entry, marked as slow if the settings say so: the host of an announced module may not know them."""
        is_to_be_slow = isinstance(entry, AnnouncedModule) and entry.module in self._own.slow_modules
        return entry.model_copy(update={"slow": True}) if is_to_be_slow else entry

    def _settings_with(
        self, theirs: Mapping[str, ModuleEntry], served: frozenset[str], entries: Mapping[str, ModuleEntry]
    ) -> Settings:
        probed = theirs.keys() if self._probes_everywhere else served
        urls = {name: entry.url for name, entry in theirs.items() if name in probed and entry.url is not None}
        limits = {name: entry.timeout_seconds for name, entry in theirs.items() if entry.timeout_seconds is not None}
        slow = {name for name, entry in theirs.items() if entry.slow}
        if not theirs and not self._replaced(entries):
            return self._own
        changes = {
            "module_services": {**self._own.module_services, **self._replaced(entries), **urls},
            "module_timeouts": {**limits, **self._own.module_timeouts},
            "slow_modules": (self._own.slow_modules - theirs.keys()) | slow,
        }
        return self._own.model_copy(update=changes)

    def _headers_with(self, entries: Mapping[str, ModuleEntry]) -> Mapping[str, ModuleHeaders]:
        elsewhere = () if self._own.signing_key is not None else self._replaced(entries).keys()
        return {module: own for module, own in self._own_headers.items() if module not in elsewhere}

    def _replaced(self, entries: Mapping[str, ModuleEntry]) -> dict[str, str]:
        """Return the addresses in effect of modules that older processes have elsewhere."""
        found = dict[str, str]()
        for name, url in self._own.module_services.items():
            entry = entries.get(name)
            if entry is not None and entry.is_static and entry.url not in {None, plain_url(url)}:
                found[name] = str(entry.url)
        return found
