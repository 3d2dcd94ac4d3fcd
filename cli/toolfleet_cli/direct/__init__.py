"""Asks Redis and the registry for what `remote` asks a gateway."""
