"""The configuration file: YAML to checked, frozen settings. No I/O."""
