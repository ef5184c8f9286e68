"""The statements of the queue, each beside the method that runs it."""
