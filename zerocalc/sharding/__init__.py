"""What one rank holds of a model, and in which units, tensors and order frameworks handle it."""
