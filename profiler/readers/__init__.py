"""One reader per recorded format, each a :class:`profiler.trace.TraceReader`; :mod:`profiler.inputs` picks one."""
