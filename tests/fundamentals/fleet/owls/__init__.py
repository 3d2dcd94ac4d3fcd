"""A module that counts owls: what the tutorial's programs call."""
