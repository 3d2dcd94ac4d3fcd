"""Finds personal data of one family each: what is cheap to see first, and what it may mean then."""
