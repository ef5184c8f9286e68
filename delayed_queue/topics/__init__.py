"""Topics and jobs: the words of the HTTP side for queues and messages."""
