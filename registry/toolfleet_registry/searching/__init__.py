"""Searches by words and tags, in what agents hold and in what registries keep."""
