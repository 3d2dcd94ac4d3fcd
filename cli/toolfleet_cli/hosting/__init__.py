"""Builds hosts from settings, and serves one over HTTP: what `toolfleet host` runs."""
