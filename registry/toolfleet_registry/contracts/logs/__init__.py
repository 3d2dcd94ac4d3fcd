"""Defines what a running tool says to whoever called it, beside its result: log messages."""
