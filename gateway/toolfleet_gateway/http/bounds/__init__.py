"""Bounds what a request may be, each rule one middleware."""
