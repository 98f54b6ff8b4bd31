"""Programs of the repository's Python-backend models. They are copied and run by Triton, without this project."""
