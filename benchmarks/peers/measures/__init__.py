"""One module for each thing that is measured; each returns the figures of one run."""
