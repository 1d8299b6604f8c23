"""``python -IS healthcheck.py PATH``: exit code 0 when this container answers 200 there on port 8000.

Run every few seconds in every container, so it imports nothing but sockets: an HTTP client costs three times the start.
"""

import socket
import sys

with socket.create_connection((socket.gethostname(), 8000), timeout=5) as connection:
    connection.sendall(b"GET %b HTTP/1.0\r\nHost: localhost\r\n\r\n" % sys.argv[1].encode())
    sys.exit(b" 200 " not in connection.recv(64))
