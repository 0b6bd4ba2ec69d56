"""Traces of what an engine routed, and engines themselves.

Dump files of engines become traces, traces become demand; layouts become files of engines or are pushed into one.
"""
