# A client of the witness service by Samba's bindings for Python.
#   witness-client.py list HOST WHERE LEVEL      prints the interfaces
#   witness-client.py wait HOST WHERE LEVEL USER%PW VERSION SHARE ADDRESS FLAGS KEEPALIVE
#       registers as CLIENT.example.org (SHARE -: for none), prints `registered`, then the notification or the error
#   witness-client.py refused HOST WHERE LEVEL USER%PW    a logon or a call that has to be refused; prints the error
#   witness-client.py handles HOST WHERE LEVEL USER%PW OTHER%PW    a user with the context handle of another
#   witness-client.py many HOST WHERE LEVEL USER%PW COUNT    registers so often, prints how many it got
# WHERE: a port, or - for the endpoint mapper. LEVEL: sign, seal, connect, or several options of a binding with commas.
import sys
from samba import credentials, param, NTSTATUSError, WERRORError
from samba.dcerpc import witness

command, host, where, level = sys.argv[1:5]
arguments = sys.argv[5:]
lp = param.LoadParm()
lp.set("netbios name", "CLIENT")


def connect(login="tester%pw"):
    creds = credentials.Credentials()
    creds.guess(lp)
    if login == "anonymous":
        creds.set_anonymous()
    else:
        user, password = login.split("%")
        creds.set_username(user)
        creds.set_password(password)
        creds.set_kerberos_state(credentials.DONT_USE_KERBEROS)
    options = level if where == "-" else "%s,%s" % (where, level)
    return witness.witness("ncacn_ip_tcp:%s[%s]" % (host, options), lp, creds)


def register(c, version, share, address, flags=0, keep_alive=30):
    if version == 1:
        return c.Register(witness.WITNESS_V1, "files.example.org", address, "CLIENT.example.org")
    share = None if share == "-" else share
    return c.RegisterEx(witness.WITNESS_V2, "files.example.org", share, address, "CLIENT.example.org", flags, keep_alive)


def name(units):
    return units if isinstance(units, str) else "".join(map(chr, units)).split("\0")[0]


def show(response):
    kinds = {1: "RESOURCE_CHANGE", 2: "CLIENT_MOVE", 3: "SHARE_MOVE", 4: "IP_CHANGE"}
    for m in response.messages:
        if response.type == 1:
            print(kinds[1], name(m.name), m.type, flush=True)
        else:
            print(kinds[response.type], *["%s:%x" % (a.ipv4, a.flags) for a in m.addr], flush=True)


if command == "list":
    found = connect().GetInterfaceList()
    for i in found.interfaces:
        print(name(i.group_name), i.ipv4, "version %x" % i.version, "state %x" % i.state, "flags %x" % i.flags)
elif command == "wait":
    login, version, share, address, flags, keep_alive = arguments
    c = connect(login)
    handle = register(c, int(version), share, address, int(flags), int(keep_alive))
    print("registered", flush=True)
    try:
        show(c.AsyncNotify(handle))
    except (NTSTATUSError, WERRORError) as e:
        print("error %x" % (e.args[0] & 0xffffffff), flush=True)
    c.UnRegister(handle)
elif command == "refused":
    try:
        connect(arguments[0]).GetInterfaceList()
    except (NTSTATUSError, WERRORError) as e:
        print("error %x %s" % (e.args[0] & 0xffffffff, e.args[1]))
    else:
        sys.exit("it was not refused")
elif command == "handles":
    mine, other = connect(arguments[0]), connect(arguments[1])
    handle = register(mine, 2, None, host)
    for call in (other.AsyncNotify, other.UnRegister):
        try:
            call(handle)
        except (NTSTATUSError, WERRORError) as e:
            print("error %x" % e.args[0])
        else:
            sys.exit("another user's handle is good")
    mine.UnRegister(handle)
elif command == "many":
    c, made = connect(arguments[0]), 0
    for _ in range(int(arguments[1])):
        try:
            register(c, 2, None, host)
            made += 1
        except (NTSTATUSError, WERRORError) as e:
            assert e.args[0] == 0x5aa, e.args
    print(made, "of", arguments[1])
