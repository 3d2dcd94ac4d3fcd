"""Builds the Redis keys of a registry: each is one of `keys.Keys`, and has its rule in `redis/key_rules.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistryKeys:
    """The names, with `begin` before each."""

    begin: str

    @property
    def tools(self) -> str:
        """A hash: each tool's registration, by its name."""
        return f"{self.begin}tools"

    @property
    def versions(self) -> str:
        """A hash: the specifications that a tool had before, by its name."""
        return f"{self.begin}versions"

    @property
    def pins(self) -> str:
        """A hash: which digests of a module's tools operators have approved."""
        return f"{self.begin}pins"

    @property
    def manifests(self) -> str:
        """A hash: each module's last good manifest, for when it has expired everywhere else."""
        return f"{self.begin}manifests"

    @property
    def events(self) -> str:
        """A stream: the last 10,000 changes of the registry."""
        return f"{self.begin}events"

    @property
    def revision(self) -> str:
        """A hash: how often the registry has changed, and which one it is."""
        return f"{self.begin}revision"

    @property
    def api_keys(self) -> str:
        """A hash: the API keys of those who come in over HTTP, by their ids; of each its digest, and what its holder may do."""
        return f"{self.begin}api-keys"

    @property
    def api_keys_used(self) -> str:
        """A hash: when each of them was used last, to a minute."""
        return f"{self.begin}api-keys-used"

    @property
    def api_keys_revision(self) -> str:
        """Another text after each change of them: what gateways ask for before they read all."""
        return f"{self.begin}api-keys-revision"

    @property
    def agents(self) -> str:
        """A hash: the profiles of agents that are in force, by their names; in the fleet's Redis also where the registry is elsewhere."""
        return f"{self.begin}agents"

    @property
    def agent_histories(self) -> str:
        """A hash: the versions of each of them, also of removed ones."""
        return f"{self.begin}agent-histories"

    @property
    def agents_revision(self) -> str:
        """Another text after each change of them: what agents and workers ask for before they read all."""
        return f"{self.begin}agents-revision"

    @property
    def agent_faults(self) -> str:
        """A hash: why processes cannot apply some of them, by name and version. Expires an hour after the last was found."""
        return f"{self.begin}agent-faults"

    @property
    def reloads(self) -> str:
        """How often somebody has asked all hosts to read their tool files anew."""
        return f"{self.begin}reloads"

    def reload_answers(self, number: int) -> str:
        """A hash: what hosts have said to one such request. Expires 10 minutes after the last answer."""
        return f"{self.begin}reload:{number}"
