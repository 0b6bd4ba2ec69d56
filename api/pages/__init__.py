"""The dashboard: pages that the service renders itself, from what :mod:`api.service` tells.

A page is a template, plain ES modules and style sheets of ``static/``; it loads nothing from elsewhere and holds no
inline script or style. Pages only read; what they change goes through ``/v1`` like anybody else's request.
"""
