"""Schema of the service's database, revision by revision (Alembic); run by ``moeplan db upgrade``."""
