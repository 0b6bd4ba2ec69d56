"""The command line, and later the service: the only place that talks to people."""
