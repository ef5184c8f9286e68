"""The act of the pipeline: a campaign and a file come in, archives and a report go out."""
