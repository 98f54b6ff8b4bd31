"""The program for an environment with torch is no test module."""

collect_ignore = ["forward.py"]
