"""A web server for the inside of a sandbox, of the standard library alone: plain answers, streams, broken ones, and WebSockets.

    python3 guest_server.py PORT
"""

# ruff: noqa: PTH123, ASYNC230 (one process, one visitor at a time: it may block)

import asyncio
import base64
import hashlib
import json
import struct
import sys

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PIECE = 64 * 1024


async def serve(reader, writer):
    try:
        await answer(reader, writer)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def answer(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = [line.split(": ", 1) for line in head[1:] if line]
    named = {name.lower(): value for name, value in headers}
    path = target.partition("?")[0]
    if path.startswith("/ws"):
        await websocket(path, named, headers, reader, writer)
    elif path == "/big":
        await big(int(target.partition("?")[2]), writer)
    elif path == "/events":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            if number < 2:
                with open(f"/tmp/go-{number}", "rb"):  # made ready by the test, a fifo: one event at a time
                    pass
        writer.write(b"0\r\nX-Trailer: gone\r\n\r\n")
    elif path == "/forever":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        sent = 0
        try:
            while True:
                writer.write(b"x" * PIECE)
                await writer.drain()
                sent += PIECE
                with open("/tmp/forever", "w") as file:
                    file.write(str(sent))
        except BaseException as error:
            with open("/tmp/forever-ended", "w") as file:
                file.write(repr(error))
            raise
    elif path == "/never":
        await asyncio.sleep(3600)
    elif path == "/cut":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
    elif path == "/nonsense":
        writer.write(b"220 mail.example ESMTP\r\n")
    elif path == "/early":
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 413 Too Much\r\nContent-Length: 2\r\n\r\nno")
        writer.write_eof()
        while await reader.read(PIECE):  # a close with something unread would be a reset
            pass
    elif path == "/orders":
        lines = ["HTTP/1.1 302 Found", "Content-Length: 0", "Location: /next", "Set-Cookie: a=1; Domain=localhost; Path=/x"]
        lines += ["Set-Cookie: belljar_preview=forged", "X-Accel-Redirect: /etc", "Strict-Transport-Security: max-age=1"]
        lines += ["Connection: x-private", "X-Private: 1", "Keep-Alive: timeout=5"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
    else:
        await echo(method, target, headers, named, reader, writer)


async def echo(method, target, headers, named, reader, writer):
    digest, size = hashlib.sha256(), 0
    async for piece in body(named, reader):
        digest.update(piece)
        size += len(piece)
    said = json.dumps({"method": method, "target": target, "headers": headers, "size": size, "sha256": digest.hexdigest()}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said))
    if method != "HEAD":
        writer.write(said)


async def body(named, reader):
    if named.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip(), 16):
            yield await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return
    left = int(named.get("content-length", 0))
    while left:
        piece = await reader.read(min(left, PIECE))
        if not piece:
            return
        left -= len(piece)
        yield piece


async def big(size, writer):
    """Without a length, up to the end of the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n")
    for number in range(size // PIECE):
        writer.write(number.to_bytes(4, "big") * (PIECE // 4))
        await writer.drain()


async def websocket(path, named, headers, reader, writer):
    if path == "/ws/no":
        writer.write(b"HTTP/1.1 403 Forbidden\r\nX-Why: closed\r\nContent-Length: 5\r\n\r\nnever")
        return
    accept = base64.b64encode(hashlib.sha1(named["sec-websocket-key"].encode() + GUID).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
    offered = named.get("sec-websocket-protocol", "").split(", ")
    if "second" in offered:
        lines.append("Sec-WebSocket-Protocol: second")
    writer.write("\r\n".join([*lines, "Set-Cookie: ws=1", "", ""]).encode())
    writer.write(frame(1, json.dumps(headers).encode()))  # with the handshake, before anything was asked
    while True:
        opcode, data = await read_frame(reader)
        if opcode == 8:
            with open("/tmp/closed-with", "wb") as file:
                file.write(data)
            writer.write(frame(8, data))
            return
        if data == b"ping":
            writer.write(frame(9, b"are you there"))
            opcode, data = await read_frame(reader)
            writer.write(frame(1, b"pong " + data if opcode == 10 else b"no pong"))
        elif data == b"fragments":
            writer.write(frame(1, b"in ", fin=False) + frame(9, b"") + frame(0, b"pieces"))
        elif data == b"bad text":
            writer.write(frame(1, b"\xff\xfe"))
        elif data.startswith(b"close "):
            writer.write(frame(8, struct.pack("!H", int(data[6:])) + b"as asked"))
        elif data == b"vanish":
            writer.transport.abort()
            return
        elif opcode != 10:
            writer.write(frame(opcode, data))
        await writer.drain()


def frame(opcode, data, fin=True):
    size = len(data)
    long = b"\x7e" + struct.pack("!H", size) if size < 65536 else b"\x7f" + struct.pack("!Q", size)
    length = bytes([size]) if size < 126 else long
    return bytes([(0x80 if fin else 0) | opcode]) + length + data


async def read_frame(reader):
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    if size > 125:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    mask = await reader.readexactly(4)
    data = bytearray(await reader.readexactly(size))
    for place in range(4):
        data[place::4] = bytes(byte ^ mask[place] for byte in data[place::4])
    return first & 0x0F, bytes(data)


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    async with server:
        await server.serve_forever()


asyncio.run(main())
