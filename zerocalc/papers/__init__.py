"""Published tables, computed again cell by cell."""
