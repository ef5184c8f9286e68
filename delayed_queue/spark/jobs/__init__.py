"""What the pipeline's commands do; each module is one of them, or what several share."""
