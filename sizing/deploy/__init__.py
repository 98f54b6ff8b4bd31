"""A plan as the files that start its servers.

`engine_settings` (settings.py) puts what was simulated of an engine into the JSON of a plan, and `deployment_of` reads
it there; in formats.py `ENGINES` say it in the options of an engine, and each of `FORMATS` makes files of it.
Where an engine has no counterpart for what was simulated, its file says so in a comment.
"""
