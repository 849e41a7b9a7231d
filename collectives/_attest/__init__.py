"""Whether the settings that were asked for reached the workers of a server."""
