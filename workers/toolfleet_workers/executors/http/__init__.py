"""Runs a call at a module's HTTP service, and judges its reply."""
