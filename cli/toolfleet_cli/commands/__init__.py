"""Answers the commands of agents' authors and operators."""
