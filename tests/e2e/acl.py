"""Reads or extends a file's access list through smbprotocol, any server.
   ADDR PORT PATH                    prints `kind flags mask sid` lines
   ADDR PORT PATH add KIND MASK SID  puts an entry in front (denied, 1) or behind (allowed, 0)"""
import os, struct, sys, uuid

from smbprotocol.connection import Connection
from smbprotocol.open import (
    CreateDisposition, ImpersonationLevel, Open, SMB2QueryInfoRequest, SMB2QueryInfoResponse, SMB2SetInfoRequest)
from smbprotocol.session import Session
from smbprotocol.tree import TreeConnect

addr, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection = Connection(uuid.uuid4(), addr, port, True)
connection.connect()
session = Session(connection, "tester", "pw")
session.connect()
tree = TreeConnect(session, f"\\\\{addr}\\test")
tree.connect()
f = Open(tree, path)
f.create(ImpersonationLevel.Impersonation, 0x060000 if len(sys.argv) > 4 else 0x020000, 0, 7, CreateDisposition.FILE_OPEN, 0)


def ask(request, **fields):
    for name, value in fields.items():
        request[name] = value
    request["file_id"] = f.file_id
    return connection.receive(connection.send(request, session.session_id, tree.tree_connect_id))


answer = SMB2QueryInfoResponse()
answer.unpack(ask(SMB2QueryInfoRequest(), info_type=3, file_info_class=0, additional_information=7,
                  output_buffer_length=65_536)["data"].get_value())
sd = answer["buffer"].get_value()


def sid_text(b):
    return "S-1-" + "-".join(map(str, [int.from_bytes(b[2:8], "big"), *struct.unpack(f"<{b[1]}I", b[8:8 + 4 * b[1]])]))


def sid_bytes(text):
    authority, *sub = map(int, text.split("-")[2:])
    return struct.pack("<BB", 1, len(sub)) + authority.to_bytes(6, "big") + struct.pack(f"<{len(sub)}I", *sub)


dacl = struct.unpack_from("<I", sd, 16)[0]
size, count = struct.unpack_from("<HH", sd, dacl + 2)
aces, at = [], dacl + 8
for _ in range(count):
    kind, flags, length, mask = struct.unpack_from("<BBHI", sd, at)
    aces.append((kind, flags, mask, sid_text(sd[at + 8:at + length])))
    at += length
if len(sys.argv) > 4:
    kind, mask, sid = int(sys.argv[5]), int(sys.argv[6], 0), sys.argv[7]
    aces.insert(0 if kind == 1 else len(aces), (kind, 0, mask, sid))
    body = b"".join(struct.pack("<BBHI", k, fl, 8 + len(sid_bytes(s)), m) + sid_bytes(s) for k, fl, m, s in aces)
    new = struct.pack("<BBHIIII", 1, 0, 0x8004, 0, 0, 0, 20) + struct.pack("<BBHHH", 2, 0, 8 + len(body), len(aces), 0) + body
    ask(SMB2SetInfoRequest(), info_type=3, file_info_class=0, additional_information=4, buffer=new)
for ace in aces:
    print("%d %#x %#010x %s" % ace)
sys.stdout.flush()
os._exit(0)
