"""API keys of a fleet that signs nothing."""

from toolfleet_registry.signing.sealing import TextSeal

UNSEALED = TextSeal(None, purpose="api-key")
