"""Ground floor: records, environment, hardware and model facts, clocks, statistics."""
