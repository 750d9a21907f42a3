"""The domain: what an engine makes of a drafter. Pure functions over plain data, no I/O, no fastapi, no torch."""
