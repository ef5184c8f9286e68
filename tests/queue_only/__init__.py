"""A project that installs the queue and none of the apps on top of it."""
