"""Experts of a verify pass: which a token chooses, in which order, and what they compute."""
