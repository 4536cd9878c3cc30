"""Front ends in processes of their own: the engine's end, the front end's, and what is between."""
