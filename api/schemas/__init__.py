"""The models that go over the wire, one file per family."""
