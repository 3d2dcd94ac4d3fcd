"""Judges the tests by planted faults: each is put into a copy of the product, and some test has to find it."""
