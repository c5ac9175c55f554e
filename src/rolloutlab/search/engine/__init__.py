"""Search execution on any backend that can filter, find nearest vectors and read columns."""
