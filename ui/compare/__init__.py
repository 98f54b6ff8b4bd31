"""The parts of the Compare page: the table, what is picked, the picked side by side, what was left out."""
