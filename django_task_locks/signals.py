"""Signals that applications may connect to."""

from django.dispatch import Signal

#: Sent after the commit of each change of a task's state; an error in a receiver is logged and
#: stops nobody else. Arguments: sender (the class Task), task, old_state, new_state.
task_state_changed = Signal()
