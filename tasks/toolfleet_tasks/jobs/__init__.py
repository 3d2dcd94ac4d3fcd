"""Makes, keeps and moves jobs: their records, the rules by which they move, and when they come due."""
