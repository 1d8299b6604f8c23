"""Several routers on one host behind one listener: `kvrouter serve --workers N`.

`parent` binds the listener, starts the workers and starts again those that end; `child` is one worker, a whole router;
`talk` is how the two speak. Workers share what routers share, through Redis, embedded or not.
"""
