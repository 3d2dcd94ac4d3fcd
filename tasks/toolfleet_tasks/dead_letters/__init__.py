"""Keeps calls, wake-ups and webhooks that came to no end, until an operator decides about them."""
