"""What happens to a fleet: its processes end, stand still or lie, and all of it is made good again."""
