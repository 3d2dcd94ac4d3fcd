"""Checks of the doctor, one in each file."""
