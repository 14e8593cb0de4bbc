"""Makes the parts of the documentation that follow from the code: run `docs/generate`."""
