"""Other people's files, one module a tool: read into what a Job is made of, or refused by name."""
