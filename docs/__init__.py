"""The documentation. What is made from the code is made by `docs.generator`."""
