"""What processes wrote down during a run, and what reads it."""
