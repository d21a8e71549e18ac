"""Plain spellings of symbols, for streams whose encoding cannot show them."""

from __future__ import annotations

import unicodedata

PLAIN = {
    "·": "*",
    "×": "x",
    "−": "-",
    "–": "-",
    "—": "-",
    "─": "-",
    "…": "...",
    "⌈": "ceil(",
    "⌉": ")",
    "⌊": "floor(",
    "⌋": ")",
    "λ": "lambda",
    "µ": "u",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "→": "->",
    "√": "sqrt",
    "∞": "inf",
    "✓": "ok",
    "✗": "no",
    "§": "section ",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
}
"""What stands for a symbol. Greek letters are spelled by their names, and letters with accents lose
them.
"""
RAISED = {"<super>": "^", "<sub>": "_"}
"""What stands before a raised or a lowered character."""


def shows(text: str, encoding: str | None) -> bool:
    """Whether an encoding has every character of a text; a stream without one, such as a text in
    memory, has them all.
    """
    if text.isascii() or encoding is None:
        return True
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plain(text: str) -> str:
    """A text in ASCII.

    >>> plain("⌈Ψ/N_d⌉·B ≤ σ²"), plain("café, 日本")
    ('ceil(Psi/N_d)*B <= sigma^2', 'cafe, ??')
    """
    return "".join(character if character.isascii() else _spelled(character) for character in text)


def plain_for(text: str, encoding: str | None) -> str:
    """A text as a stream of that encoding can show it: only what the encoding lacks is spelled
    plainly.

    >>> plain_for("2·Ψ", "cp1252"), plain_for("2·Ψ", "ascii"), plain_for("2·Ψ", "utf-8")
    ('2·Psi', '2*Psi', '2·Ψ')
    """
    return (
        text
        if shows(text, encoding)
        else "".join(c if shows(c, encoding) else _spelled(c) for c in text)
    )


def _spelled(character: str) -> str:
    if character in PLAIN:
        return PLAIN[character]
    words = unicodedata.name(character, "").split()
    if words[:1] == ["GREEK"] and "LETTER" in words:
        name = words[words.index("LETTER") + 1].lower()
        return name.capitalize() if "CAPITAL" in words else name
    kind, _, base = unicodedata.decomposition(character).partition(" ")
    if kind in RAISED:
        return RAISED[kind] + chr(int(base, 16))
    # Not NFKD: a full-width digit is not the digit that it looks like, and an error line must not
    # say so.
    return (
        "".join(part for part in unicodedata.normalize("NFD", character) if part.isascii()) or "?"
    )
