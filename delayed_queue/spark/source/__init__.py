"""The data source: reading, offering and streaming queues through Spark."""
