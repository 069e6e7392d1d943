"""What tests lean on: private servers, real processes, and waiting for facts."""
