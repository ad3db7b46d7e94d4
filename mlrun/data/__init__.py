"""What data is before any framework sees it: rows, labels and tokens."""
