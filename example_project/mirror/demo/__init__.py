"""The demonstration behind `manage.py demo`.

catalog       chooses what is mirrored, among the distributions installed here
scenario      what is dispatched, and with which resources
workers       the worker processes: start, kill, restart, end
watching      what runs and what waits on whom, read from the database and the lock service
display, live shows it: plain lines, or a live view on a terminal
verify        the checks at the end
conducting    the order of events
"""
