"""Signals that applications may connect to."""

from django.dispatch import Signal

#: Sent after the commit of each change of a task's state; an error in a receiver is logged and
#: stops nobody else. Arguments: sender (the class Task), task, old_state, new_state.
task_state_changed = Signal()

#: Sent once for each task group, after its last member has come to a final state and that is
#: committed, by the process that has found it. Arguments: sender (the class TaskGroup), group.
task_group_finished = Signal()
