"""The command line's half of a moeplan service: asking it over HTTP for what a command would else do itself.

``connection`` is one service and its token, ``events`` follows a job, the other modules are what is asked for, one
for each kind of thing. Nothing here knows the command line's options or prints.
"""
