"""Measures LLM servers and keeps the points. Start reading at calibration/run.py."""
