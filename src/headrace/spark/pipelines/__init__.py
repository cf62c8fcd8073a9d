"""Pipelines: how they are declared, run, archived and replayed."""
