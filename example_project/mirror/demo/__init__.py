"""The demonstration behind `manage.py demo`.

premises      the clean ground that it starts on
catalog       chooses what is mirrored, among the distributions installed here
scenario      what is dispatched, and with which resources
workers       the worker processes: start, kill, restart, end
watching      what runs and what waits on whom, read from the database and the lock service
display       shows it as plain lines; live: as a live view on a terminal
conducting    the order of events: dispatch, kill, restart, watch
verify        the checks at the end
performance   all of it together
"""
