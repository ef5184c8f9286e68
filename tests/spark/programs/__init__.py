"""Drivers of Spark that tests start, kill and start again."""
