"""Defines what a call's approval by people consists of."""
