"""Answers the commands about modules: which there are, and which are to be there."""
