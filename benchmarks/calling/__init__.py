"""Makes a system's calls, in a process of their own: as many as there may be, one after the other, or when they are due."""
