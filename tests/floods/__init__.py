"""Floods: what the service does under far more work than it can take, with figures: `python -m tests.floods`.

Each flood checks its facts against the records and the journal, and fails when one is false.
"""
