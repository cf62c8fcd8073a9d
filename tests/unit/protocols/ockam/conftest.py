"""Lets the tests of this directory import the helpers that stand beside them.

Property tests have no deadline per example: on a busy machine that would measure the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
sys.path.insert(0, str(Path(__file__).parent))
