"""Encoders in the forms that users serve, and back."""
