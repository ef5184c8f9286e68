"""A day of a shop's notifications in half a minute, through providers that fail on purpose."""
