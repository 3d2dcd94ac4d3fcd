"""What Redis does for a call: by script and command, and by the way in which it keeps its data."""
