"""Answers operators about queues."""
