"""Replay over HTTP: the trace that `kvrouter replay` ranks policies on, played to simulated engines through the real
router, once for each policy, to see whether the ranking holds where there are sockets, clocks and processes."""
