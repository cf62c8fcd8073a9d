"""`python -m headrace`."""

from headrace.cli.main import run

run()
