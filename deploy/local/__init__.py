"""Starts worker and scheduler on this machine and stops them again."""
