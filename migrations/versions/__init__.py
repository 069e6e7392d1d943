"""One script per change of the schema, in the order of their numbers."""
