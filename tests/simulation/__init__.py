"""The fleet under every fault, in virtual time: `make simulate`.

Agents, workers, beat and modules of `make chaos` live in the bed, and are killed at their writes, cut off, paused and
frozen by a plan that a seed makes. So do those who make jobs, approve calls, call through a gateway and build chains of
calls: `life` has them. What must hold afterwards is what `chaos.checks` says.
"""
