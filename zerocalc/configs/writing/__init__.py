"""Jobs as other people's files, one module a tool, called as --to calls it."""
