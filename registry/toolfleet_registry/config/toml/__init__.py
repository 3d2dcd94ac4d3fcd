"""Finds places in TOML documents."""
