"""Remote work: rooms, registered jobs, and workers that pull over HTTP (contract, section 8).

The same shape as the rooms around it: every unit of work is a plain function of a connection. A remote task is a row of
the one job table; a claimed one is `pending` with `dispatched_at` set, held by the worker whose incarnation it names.

How long the columns that a claim fills keep what they say:

- `dispatched_at`, since when it is claimed: until it is reported running, ends or goes back.
- `worker_incarnation`, the worker that reports must come from and whose end is the task's: until it ends or goes back;
  of a cancelled task until its worker speaks of it, goes away, or one worker timeout is over, so that it can be told.
- `worker` and `held_by`, the name and the identity of who holds it: for good, unless it goes back.
"""
