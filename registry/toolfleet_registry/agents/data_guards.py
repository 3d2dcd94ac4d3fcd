"""Hides personal data as agents' profiles say: in published arguments, and in tools' results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolfleet_registry.config.agent_profile import AgentProfile, AgentSettings, PiiSpec, Place
from toolfleet_registry.errors import PersonalDataBlocked, SettingsError
from toolfleet_registry.signing import SigningSettings, derived_key
from toolfleet_registry.system.lazy_names import LazyModule

if TYPE_CHECKING:
    from toolfleet_registry.personal_data import findings, personal_data
else:
    personal_data = LazyModule("toolfleet_registry.personal_data.personal_data")  # few agents have such a profile
    findings = LazyModule("toolfleet_registry.personal_data.findings")

_MOST_KEPT = 1_000


class DataGuards:
    """The data guards of one process.

    Each entry's detector is built once, on first use: phone number plans take a while to load.

    `hash` needs the fleet's signing key: without a key an attacker could try all telephone numbers.
    """

    def __init__(self, settings: SigningSettings) -> None:
        self._key = None if settings.signing_key is None else derived_key(settings.signing_key, "personal data")
        self._made = dict[int, tuple[PiiSpec, "personal_data.PersonalData"]]()

    def fault(self, profile: AgentProfile) -> str | None:
        """Return why a profile cannot be applied here, as a sentence, or `None` if it can."""
        try:
            for spec in profile.middleware:
                if isinstance(spec, PiiSpec):
                    self._guard(spec)
        except ValueError as exc:
            return str(exc)
        return None

    def check(self, settings: AgentSettings) -> None:
        """Raise `SettingsError`, with the agent's name, for a profile of the settings that cannot be kept to here."""
        for agent, profile in settings.agents.items():
            if (fault := self.fault(profile)) is not None:
                raise SettingsError(f"TOOLFLEET_AGENTS, at {agent}.middleware: {fault}")

    async def hide(
        self, specs: Sequence[PiiSpec], place: Place, value: Any, *, size: int
    ) -> "personal_data.HiddenValue":
        """Return a JSON value of about `size` bytes without what these entries look for at that place. Raises `PersonalDataBlocked`."""
        counts = Counter[str]()
        for spec in specs:
            if place in spec.apply_to:
                hidden = await self._guard(spec).hide_aside(value, size=size)
                value = hidden.value
                counts.update(hidden.counts)
        return personal_data.HiddenValue(value, dict(counts))

    def hide_now(self, specs: Sequence[PiiSpec], place: Place, value: Any) -> Any:
        """Return the same for a small value, at once. Raises `PersonalDataBlocked`."""
        for spec in specs:
            if place in spec.apply_to:
                value = self._guard(spec).hide(value).value
        return value

    def shown_id(self, specs: Sequence[PiiSpec], name: str, value: str) -> str:
        """Return an identifier as audit and logs may show it: its digest, if these entries find something in it.

        Without a signing key it is hidden as they say.
        """
        try:
            hidden = self.hide_now(specs, "arguments", value)
        except PersonalDataBlocked as exc:
            hidden = findings.label(exc.kind)
        return value if hidden == value else self.digest(name, value) or hidden

    def digest(self, name: str, value: str | None) -> str | None:
        """Return what stands for an identifier, the same in every process and for every profile; `None` without a signing key."""
        return None if self._key is None or value is None else findings.digest(self._key, name, value)

    def _guard(self, spec: PiiSpec) -> "personal_data.PersonalData":
        known = self._made.get(id(spec))
        if known is not None and known[0] is spec:
            return known[1]
        if len(self._made) >= _MOST_KEPT:
            self._made.clear()
        regions = spec.regions or personal_data.DEFAULT_REGIONS
        made = personal_data.PersonalData(spec.pii_types, spec.patterns, spec.strategy, key=self._key, regions=regions)
        self._made[id(spec)] = spec, made
        return made


def counted(counts: Mapping[str, int]) -> str:
    """Return the counts of hidden values as the audit line shows them: `2 email, 1 iban`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
