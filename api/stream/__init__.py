"""Server-Sent Events: frame (pure), hub (fan-out), feed (the one reader of a process), response (ASGI)."""
