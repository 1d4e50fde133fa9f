"""The store edge: SQL. The truth of the farm; SQLite embedded, PostgreSQL for a facility.

Named queries, one module a noun, each a function of an open transaction (`db`). Rows never leave the room.
"""
