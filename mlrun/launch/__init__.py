"""Starting a run and seeing it through, on the launching machine."""
