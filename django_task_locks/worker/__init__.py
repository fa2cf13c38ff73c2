"""The worker: a supervisor with its guard, and executor processes with slots."""
