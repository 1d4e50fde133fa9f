"""The store edge: SQL. The truth of the farm; SQLite embedded, PostgreSQL for a facility.

Each function takes an open transaction (`db`). Modules named after a noun (jobs, tasks, nodes) are about it;
those named after a verb (submitting, dispatching, settling, steering) write what the verb does. Rows never
leave the room.
"""
