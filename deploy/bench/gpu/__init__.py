"""What the server does on a GPU, row by row, against floors and against vLLM."""
