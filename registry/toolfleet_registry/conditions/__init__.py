"""Evaluates the part of JMESPath that jobs may use."""
