"""Whether a server drops locks when its memory is full."""

import re

from redis.utils import str_if_bytes

from django_task_locks.locks import failures
from django_task_locks.locks.manager import LockManager

_POLICY = re.compile(r"^maxmemory_policy:([\w-]+)", re.MULTILINE)


def harmful_policy(manager: LockManager) -> str:
    """The server's `maxmemory-policy` if it lets locks go; else, or if the server does not tell,
    "". Raises LockServiceUnavailable.

    All others drop nothing, or only what has a time to live, and no lock has one.
    """
    try:
        found = _POLICY.search(_info(manager))
    except failures.ERRORS as error:
        if failures.is_away(error):
            failures.raise_translated(error, "harmful_policy", manager.endpoint)
        return ""  # it refuses the question
    return found[1] if found and found[1].startswith("allkeys-") else ""


def _info(manager: LockManager) -> str:
    # A connection of its own is one to the node that has the locks, in a cluster too.
    connection = manager.transport.connection_to(manager.keys.anchor)
    try:
        connection.connect()
        connection.send_command("INFO", "memory")
        return str(str_if_bytes(connection.read_response()))
    finally:
        connection.disconnect()
