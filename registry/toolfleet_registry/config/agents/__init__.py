"""Declares agents' profiles: which tools each may use, and what stands around its calls."""
