"""The load tool: `python -m deploy.loadtest`."""
