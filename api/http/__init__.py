"""The service over HTTP: routes parse and answer, :mod:`api.service` decides. Only this package knows status codes."""
