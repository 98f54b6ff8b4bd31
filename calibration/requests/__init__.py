"""Prompts and their lengths. Start with `source.Source`."""
