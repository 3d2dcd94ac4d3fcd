"""What happens around every call: one concern a file; none knows another."""
