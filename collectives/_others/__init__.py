"""All-reduces of others, measured in the same table as NCCL's by the machinery of _sweep."""
