"""Ground floor: records, environment, hardware and model facts, clocks, statistics."""

from verifyscope import lacking

lacking.watch()
