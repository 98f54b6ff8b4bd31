"""The planner's command line: ``python -m sizing COMMAND``."""
