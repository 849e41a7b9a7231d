"""Two runs beside each other: their rows, verdicts, the split of the change, and what differs."""
