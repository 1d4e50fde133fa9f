"""Run by Alembic, inside the transaction that `farm.store.schema.upgrade` has opened."""

from alembic import context
from sqlmodel import SQLModel

from farm.store import tables

assert tables  # importing it fills the metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
)
context.run_migrations()
