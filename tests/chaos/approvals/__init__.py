"""Has people approve, edit, reject and forget calls under faults, and holds the modules' journal against that."""
