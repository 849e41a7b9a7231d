"""Other people's measurements become Records: `python -m ingest FILE...`."""
