"""A module of one function: `toolfleet up --module examples/larks` serves it."""
