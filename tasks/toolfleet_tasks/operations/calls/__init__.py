"""Finds calls that have ended, among all that the audit has, for operators."""
