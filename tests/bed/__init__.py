"""A whole fleet in one process and on one event loop, in virtual time.

Agents, Celery workers, beat, gateways and modules run beside each other, each as a `Site`, against a real Redis server. The
clock stands still while anything goes on. When nothing does, it jumps to the next timer, and Redis's clock jumps with it.

`replaced` is imported first: it puts the virtual clock in the place of the standard library's, so a process that uses the
bed runs nothing else. `fleet.Bed` is what a test asks for.
"""
