"""Becomes another program that does not outlive the process that started this one.

    python tether.py PARENT_PID SIGNAL USER COMMAND [ARGUMENT ...]

Linux sends SIGNAL when the parent (to be exact: the thread of it that started this) is gone,
however it went. Elsewhere the parent's own tidying has to do. USER, if not empty, is the user to
run as. This is a program and no preexec_fn, which is not safe in a process with threads; it uses
the standard library alone (python -I -S).
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def become_user(name: str) -> None:
    import pwd

    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def tie_to_parent(parent: int, signal_number: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # It may have died before it could be asked.
    if os.getppid() != parent:
        sys.exit("the process that started this is gone")


def main() -> None:
    parent, signal_number, user, *command = sys.argv[1:]
    # In this order: changing the user clears what prctl has set.
    if user:
        become_user(user)
    tie_to_parent(int(parent), int(signal_number))
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
