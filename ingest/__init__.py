"""Other people's measurements become Records: `python -m ingest FILE...`."""

from verifyscope import lacking

lacking.watch()
