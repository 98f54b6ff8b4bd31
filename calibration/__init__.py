"""Measure LLM servers and store the points. Start reading at calibration/run.py."""
