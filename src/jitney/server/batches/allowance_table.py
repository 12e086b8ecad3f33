"""The rows of what keys have used for their batches: `AllowanceTable`. The store's thread.

There is a row for each key that has used some, and did not get all of it back.

Tests: tests/unit/server/batches/test_allowances.py.
"""

import sqlite3
from collections.abc import Mapping

from jitney.server.batches.database import Database


class AllowanceTable:
    """Tokens by the names of keys. `at_open` is what an earlier process left; any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.reading() as connection:
            rows = connection.execute("SELECT owner, used FROM allowances").fetchall()
        self.at_open: Mapping[str, float] = {row["owner"]: row["used"] for row in rows}

    def note(self, used: Mapping[str, float]) -> None:
        """These have used so much."""
        with self._database.transaction() as connection:
            note_used(connection, used)


def note_used(connection: sqlite3.Connection, used: Mapping[str, float]) -> None:
    """The same, in a transaction of somebody else."""
    connection.executemany(
        "INSERT INTO allowances VALUES (?, ?) "
        "ON CONFLICT (owner) DO UPDATE SET used = excluded.used",
        used.items(),
    )
    connection.execute("DELETE FROM allowances WHERE used <= 0")
