"""The fleet and the queues that one would use instead, on the same work, side by side: `python -m benchmarks`."""
