"""What the command lines run: each job takes its configuration and composes the parts."""
