"""The contract, checked on real processes: API, workers, Redis and PostgreSQL as users run them."""
