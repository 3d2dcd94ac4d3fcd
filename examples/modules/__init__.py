"""Real modules to try the fleet with: each is a FastAPI service of its own."""
