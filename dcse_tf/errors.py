"""The error of input that cannot be used."""


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the line and what was expected."""
