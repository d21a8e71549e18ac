"""Job to ledger, a file a block."""
