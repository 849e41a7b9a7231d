"""What surrounds verify attention: trees, their masks, and which drafts are accepted."""
