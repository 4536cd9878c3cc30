"""What runs, fetches and measures nanoserve; nothing in the servers imports it."""
