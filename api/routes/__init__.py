"""The endpoints, one file per family. Each parses, makes one call and shapes the answer."""
