"""Notes what each worker is and serves, for agents and operators."""
