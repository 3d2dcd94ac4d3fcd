"""Knows what each provider takes, and under which names."""
