"""Defines traces: the names in them, the port through which spans are begun, and OpenTelemetry behind it."""
