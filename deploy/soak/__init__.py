"""Faults on purpose, under load, with real processes: nothing may be lost."""
