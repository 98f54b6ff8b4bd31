"""The batching lesson and the sizing course, with their views of the Simulate page and their commands.

A tenant: it may import sizing and ui, never the reverse; pages and command lines find it by name.
"""
