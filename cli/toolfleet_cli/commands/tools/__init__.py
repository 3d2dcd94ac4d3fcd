"""Answers the commands about tools: which there are, and which are in effect."""
