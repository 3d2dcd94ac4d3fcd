"""The benchmark is no part of what is installed: it is imported from the repository's root, where it is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
