"""Checking anybody's payloads against anybody's schemas, without the service waiting for it.

What may take long is done by a process beside this one, which ends itself when it takes too long (checker.py,
child.py). Whether it may is estimated from the sizes of both (effort.py).
"""
