"""Queues on Spark: a data source, and the pipeline's commands."""
