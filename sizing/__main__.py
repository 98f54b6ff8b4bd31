"""``python -m sizing``: the planner on the command line."""

from sizing.cli import main

if __name__ == "__main__":
    main()
