"""Provides the packages that tool files ask for, in environments of the host's own."""
