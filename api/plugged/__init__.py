"""The service on any other implementation of `Scheduler`: what HTTP asks for, out of the documented surface alone.

Such a scheduler announces nothing, so streams look at its records; it has one limit and no queues, and no database.
"""
