"""Says how a worker is doing, to whoever scrapes its metrics."""
