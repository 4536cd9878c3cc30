"""What `nanoserve top` shows. Needs rich, the extra `top`."""
