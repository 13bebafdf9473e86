"""The ways to checkpoint that bench/rivals.py compares, and what drives each of them."""
