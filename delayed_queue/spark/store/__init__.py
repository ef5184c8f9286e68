"""The statements of the pipeline."""
