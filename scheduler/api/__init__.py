"""The front end: requests in, text out. Text lives here and nowhere else."""
