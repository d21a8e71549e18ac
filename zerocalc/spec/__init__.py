"""What the user describes: validated once, here, and frozen.

Annotations stand here without ``from __future__ import annotations``: pydantic would compile each
of them from its text at every start.
"""
