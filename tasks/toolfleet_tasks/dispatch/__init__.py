"""Gets a prepared call published, as soon as it may be."""
