"""A small core of an agent: conversations in SQL, a loop over a model, and a fleet that wakes it."""
