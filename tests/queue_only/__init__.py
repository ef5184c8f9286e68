"""A project that installs the queue and none of its wings."""
