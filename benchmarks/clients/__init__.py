"""Clients that cost little beside a server, most in a process of their own."""
