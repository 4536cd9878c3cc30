"""What batching buys, and where it stops paying."""
