"""Markdown and plots from records; needs neither torch nor a GPU."""

from verifyscope import lacking

lacking.watch()
