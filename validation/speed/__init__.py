"""Speeds and accuracies, measured where they are run; nothing here is asserted."""
