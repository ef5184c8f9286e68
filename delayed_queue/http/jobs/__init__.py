"""Topics and jobs: the words of HTTP for queues and messages."""
