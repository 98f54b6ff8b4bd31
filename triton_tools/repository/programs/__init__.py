"""Programs of the repository's models on the Python backend. They are copied into it and run in Triton, without this
project."""
