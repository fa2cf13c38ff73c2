"""What a database connection's driver knows of it: asked without a round trip, so that every task
can afford it. A driver that is not known here has nothing to say.
"""

import sqlite3
from contextlib import suppress
from typing import Any

# libpq's numbers, the same in psycopg and psycopg2.
_IN_TRANSACTION, _IN_FAILED_TRANSACTION = 2, 3


def is_in_transaction(driver: Any) -> bool:
    """Whether a transaction is open that Django may know nothing of: begun by an SQL statement."""
    with suppress(Exception):  # closed, or another driver
        if hasattr(driver, "info") and hasattr(driver.info, "transaction_status"):
            status = int(driver.info.transaction_status)
            return status in (_IN_TRANSACTION, _IN_FAILED_TRANSACTION)
        return bool(getattr(driver, "in_transaction", False))
    return False


def is_closed(driver: Any) -> bool:
    """Whether nothing can be asked by it any more, as far as the driver has noticed."""
    try:
        if isinstance(driver, sqlite3.Connection):
            return driver.total_changes < 0  # it raises if it is closed
        return bool(getattr(driver, "closed", False))
    except Exception:
        return True
