"""Results to text: the only rooms that know rich."""
