"""Markdown and plots from records; needs neither torch nor a GPU."""
