"""How a sweep is planned, run by fresh processes, and recorded."""
