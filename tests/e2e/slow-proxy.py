"""A TCP proxy with one slow direction: slow-proxy.py LISTEN TARGET down|up BYTES_PER_SECOND

down: from the server at port TARGET to the client. up: the other way. Little of it waits in the system's buffers."""
import socket, sys, threading, time

listen, target, slow, rate = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
CHUNK, BUFFER = 64 << 10, 64 << 10


def copy(source, to, is_slow):
    try:
        while data := source.recv(rate // 10 if is_slow else CHUNK):
            to.sendall(data)
            if is_slow:
                time.sleep(len(data) / rate)
    except OSError as e:
        print(e, flush=True)
    for s in (source, to):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if slow == "up":
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
listener.bind(("127.0.0.1", listen))
listener.listen()
while True:
    client, server = listener.accept()[0], socket.socket()
    if slow == "down":
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    server.connect(("127.0.0.1", target))
    threading.Thread(target=copy, args=(client, server, slow == "up"), daemon=True).start()
    threading.Thread(target=copy, args=(server, client, slow == "down"), daemon=True).start()
