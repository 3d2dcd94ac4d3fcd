"""Builds hosts from settings, and serves one over HTTP, for `toolfleet host`."""
