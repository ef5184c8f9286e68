"""Schedules, and the ticks that are written ahead from them."""
