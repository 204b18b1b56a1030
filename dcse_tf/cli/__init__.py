"""The command lines; no other part of the package deals with flags."""
