"""Remote work: rooms, registered jobs, and workers that pull over HTTP (contract, section 8).

The same shape as the rooms around it: every unit of work is a plain function of a connection. A remote task is a row of
the one job table; a claimed one is `pending` with `dispatched_at` set, held by the worker whose incarnation it names.
"""
