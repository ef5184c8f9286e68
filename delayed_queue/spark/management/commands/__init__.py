"""The command of the pipeline."""
