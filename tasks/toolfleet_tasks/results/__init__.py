"""Listens for results, verifies and reads them, and confirms that callers have them."""
