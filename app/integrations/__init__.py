"""Engines and trainers outside that speak the same slab and socket."""
