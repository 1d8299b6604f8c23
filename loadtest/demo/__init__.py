"""`kvrouter demo`: simulated engines and the router in one go, in two processes that end with this one.

run       the order of steps
children  processes on a leash
engines   the process with all simulated engines
status    the router's counts as one line
"""
