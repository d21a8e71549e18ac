"""What the user describes: validated once, here, and frozen."""
