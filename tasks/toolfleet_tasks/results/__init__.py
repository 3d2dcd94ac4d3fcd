"""Listens for results, reads them, and decides what is believed."""
