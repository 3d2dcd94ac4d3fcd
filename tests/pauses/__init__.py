"""Workers that stand still for longer than their leases, and what their modules were made to do."""
