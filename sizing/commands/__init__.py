"""The commands of ``python -m sizing``, one file for each family; sizing/cli.py loads them on use."""
