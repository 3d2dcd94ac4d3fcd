"""Watches files and processes of a local fleet."""
