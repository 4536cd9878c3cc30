"""The `nanoserve` command."""
