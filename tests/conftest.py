"""What all tests share."""

import os
from pathlib import Path

# Tests that start processes run this tree, whether or not it is installed.
SOURCE = str(Path(__file__).parent.parent / "src")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
