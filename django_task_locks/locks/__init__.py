"""The lock manager: exclusive and shared locks on named resources, granted all together, in order.

It knows neither Django nor settings; the client and the prefix are passed in.
"""

from django_task_locks.locks.aio import AsyncLockManager
from django_task_locks.locks.manager import LockManager
from django_task_locks.locks.requests import LockRequest

__all__ = ["AsyncLockManager", "LockManager", "LockRequest"]
