"""Fleets beyond one candidate at one load: a day's profile, several workloads, mixed GPUs, and fleets that exist."""
