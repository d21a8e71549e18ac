"""The one way in which a command says that its input is wrong."""


class UserError(Exception):
    """Bad input: one line for stderr, exit status 2."""
