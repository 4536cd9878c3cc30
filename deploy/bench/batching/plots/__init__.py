"""The pictures, in the look of the load tool's (deploy/loadtest/plots/style.py)."""
