"""What a run stands on: private servers, the processes that are measured, and looking at them from outside."""
