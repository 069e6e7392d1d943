"""What the storm blows over: modules of tasks for its deployments, and the service that it is compared with."""
