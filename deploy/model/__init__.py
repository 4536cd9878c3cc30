"""Getting a model: the default one, a local folder, or one from the Hugging Face hub."""
