"""Replay of traces against routing policies: offline, on a virtual clock, driving the router's own scheduling code."""
