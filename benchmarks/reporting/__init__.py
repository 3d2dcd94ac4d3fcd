"""Writes what was measured: tables, ratios, the picture, and whether the targets are reached."""
