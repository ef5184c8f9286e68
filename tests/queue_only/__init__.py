"""A project that installs the queue without the apps on top of it."""
