"""Has people approve calls before they begin: durably, bound to what they see, and once."""
