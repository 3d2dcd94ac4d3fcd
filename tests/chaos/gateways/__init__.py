"""Repeats calls under idempotency keys at two gateways while everything between their clients and the modules is killed."""
