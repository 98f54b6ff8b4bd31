"""``python -m calibration``."""

from calibration.cli import main

if __name__ == "__main__":
    main()
