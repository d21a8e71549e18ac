"""Job to schedule, a file a group of ranks."""
