"""The pipeline: one module per command, and the modules that commands share."""
