"""Makes tools of functions that workers run themselves."""
