"""What a machine is as a collective host: looked at, read from saved texts, tested, judged."""
