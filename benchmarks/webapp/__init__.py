"""The web servers that ``benchmarks.http`` measures."""
