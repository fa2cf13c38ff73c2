"""Signals that applications may connect to."""

from django.dispatch import Signal

#: Sent after the commit of each change of a task's state; an error in a receiver is logged and
#: stops nobody else. Arguments: sender (the class Task), task, old_state, new_state.
task_state_changed = Signal()

#: Sent once for each task group, after its last member has come to a final state and that is
#: committed, by the process that has found it. Arguments: sender (the class TaskGroup), group.
task_group_finished = Signal()

#: Sent when a `hold` of this process has lost its locks while its code went on: the process was
#: declared missing, or Redis lost its data, or a key of these locks alone, and they could not be
#: restored. Arguments: sender (the class Held), held, reason. It is sent from the thread of the
#: heartbeat.
hold_lost = Signal()
