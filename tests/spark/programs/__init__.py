"""Spark drivers that tests start, kill and restart."""
