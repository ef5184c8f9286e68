"""The work of the pipeline's commands; each module is one of them, or shared by several."""
