"""A storm of faults over a running deployment, and the proof, job by job, of what it did: `make chaos`."""
