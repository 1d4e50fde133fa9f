"""The schema's history, for Alembic. `farm.store.schema` is the door.

One revision a release at most; each is tested with data in it. There is no way down: go back by restoring the
backup that was made before the upgrade.
"""
