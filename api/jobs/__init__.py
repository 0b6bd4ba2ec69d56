"""Long work that survives the death of whoever does it.

``durable`` is the one module that knows DBOS. ``worker`` is the process that carries jobs out, ``running`` what every
job has in common, ``task_process`` a process beside the worker that can be stopped at any time; one module for each
kind of job says what is done, step by step.
"""
