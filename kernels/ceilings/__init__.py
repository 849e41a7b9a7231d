"""What this GPU can do at best: memory, matrix products, an empty kernel."""
