"""The calls of the job API: a module each group, with its ``router``."""
