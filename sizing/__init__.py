"""The planner's arithmetic: numbers in, numbers out. Start reading at sizing/planner.py."""
