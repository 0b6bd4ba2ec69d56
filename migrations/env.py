"""Runs migrations on the connection that :mod:`api.store.migrate` hands in, in its transaction."""

from __future__ import annotations

from alembic import context

from api.store.models import Base

connection = context.config.attributes["connection"]
# SQLite changes columns by making the table anew, which Alembic calls batch mode.
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
context.run_migrations()
