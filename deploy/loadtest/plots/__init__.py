"""Pictures of load runs, one file for each question."""
