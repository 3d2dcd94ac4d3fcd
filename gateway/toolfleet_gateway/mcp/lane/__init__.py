"""Serves `tools/call` of 2026-07-28 on a short way of its own: most requests are one, and the SDK's way takes three times as long."""
