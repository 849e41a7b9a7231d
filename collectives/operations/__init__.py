"""The collectives that a sweep can time: each is one file here, which declares a `Collective`."""
