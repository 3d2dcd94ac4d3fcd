"""What tools exist, who may see them, and how a model sees them. Knows no broker."""
