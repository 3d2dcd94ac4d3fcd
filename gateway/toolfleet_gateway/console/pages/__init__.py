"""Answers the requests of each page, a concern a file."""
