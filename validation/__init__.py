"""Every claim again: evidence beside its goals, and speeds.

A tenant: it may import all rooms, none imports it; command lines find it by name.
"""
