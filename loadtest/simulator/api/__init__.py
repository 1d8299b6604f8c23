"""The HTTP surface of the simulated engine: raw ASGI, one module for each family of routes."""
