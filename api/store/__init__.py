"""What the service keeps: a database by migrations, and files named by their content.

``models`` are the tables, ``database`` opens and checks, the other modules are the queries, one per kind of thing.
Nothing here decides anything, and nothing outside imports SQLAlchemy.
"""
