"""The tasks of each peer, written as its documentation does it. Imported in the peer's own
environment alone: by its workers, and by client.py, which dispatches.

A module here has

    dispatch(job)          hands one job to the workers
    dispatch_bulk(jobs)    many in one call; absent where the peer has no such call
    occupy(names)          makes resources busy until this process ends; absent where it cannot
"""
