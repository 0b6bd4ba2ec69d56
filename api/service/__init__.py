"""What the service decides: between the HTTP routes, which parse, and the store, which queries.

Every function takes the session of the request or job that calls it and commits nothing: there is one commit, at the
edge.
"""
