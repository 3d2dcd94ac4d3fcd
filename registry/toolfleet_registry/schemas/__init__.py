"""Whether values are what a schema says: compiled once, bounded in work, and worded so that no value is repeated."""
