"""impacket against a server: every dialect that it speaks, files and directories, signing and encryption, and RPC over the
pipes srvsvc, wkssvc, lsarpc and samr, for a user and for an administrator.   ADDR PORT DIR"""
import hashlib, io, os, sys, time

from checks import check, finish
from impacket.dcerpc.v5 import lsad, lsat, samr, srvs, transport, wkst
from impacket.dcerpc.v5.dtypes import MAXIMUM_ALLOWED
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.nmb import NetBIOSError
from impacket.smb3structs import SMB2_DIALECT_002, SMB2_DIALECT_21, SMB2_DIALECT_30, SMB2_DIALECT_311
from impacket.smbconnection import SessionError, SMBConnection

ADDR, PORT, DIR = sys.argv[1], int(sys.argv[2]), sys.argv[3]
USER, ADMINISTRATOR, PASSWORD = "tester", "boss", "pw"



def connect(dialect=None, password=PASSWORD, user=USER):
    # Without a dialect it begins with SMB 1's negotiate, as its tools do.
    c = SMBConnection(ADDR, ADDR, sess_port=PORT, preferredDialect=dialect, timeout=30)
    c.login(user, password)
    return c


def pipe(interface, name, user=USER):
    c = connect(user=user)
    over = transport.SMBTransport(ADDR, PORT, filename=name, smb_connection=c)
    rpc = over.get_dce_rpc()
    rpc.connect()
    rpc.bind(interface)
    return rpc


def status_of(f):
    try:
        f()
    except SessionError as e:
        return e.getErrorCode()
    return 0


def denied(f):
    try:
        f()
    except DCERPCException as e:
        if e.get_error_code() in (5, 0xC0000022) or "rpc_s_access_denied" in str(e):
            return True
        raise
    return False


@check("files in every dialect, byte for byte")
def _():
    for dialect in (SMB2_DIALECT_002, SMB2_DIALECT_21, SMB2_DIALECT_30, SMB2_DIALECT_311):
        c = connect(dialect)
        assert c.getDialect() == dialect, hex(c.getDialect())
        data = os.urandom(200_017)
        here = f"\\d{dialect:x}"
        c.createDirectory("test", here)
        name = f"{here}\\füllung {dialect:x}.bin"
        c.putFile("test", name, io.BytesIO(data).read)
        back = io.BytesIO()
        c.getFile("test", name, back.write)
        assert back.getvalue() == data, "other bytes came back"
        with open(DIR + name.replace("\\", "/"), "rb") as f:
            assert hashlib.sha256(f.read()).digest() == hashlib.sha256(data).digest(), "other bytes on the disk"
        listed = {f.get_longname(): f for f in c.listPath("test", f"{here}\\*")}
        entry = listed[name.split("\\")[-1]]
        assert entry.get_filesize() == len(data) and not entry.is_directory()
        c.rename("test", name, f"{here}\\renamed")
        assert status_of(lambda: c.deleteDirectory("test", here)) == 0xC0000101, "not empty"
        c.deleteFile("test", f"{here}\\renamed")
        c.deleteDirectory("test", here)
        assert not os.path.exists(os.path.join(DIR, f"d{dialect:x}"))
        c.logoff()


@check("an encrypted share, and what is refused")
def _():
    c = connect(SMB2_DIALECT_311)
    c.putFile("enc", "\\secret", io.BytesIO(b"not in the clear").read)
    back = io.BytesIO()
    c.getFile("enc", "\\secret", back.write)
    assert back.getvalue() == b"not in the clear"
    assert status_of(lambda: c.putFile("ro", "\\x", io.BytesIO(b"x").read)) in (0xC0000022, 0xC00000A2)
    assert status_of(lambda: c.connectTree("nothing")) == 0xC00000CC
    assert status_of(lambda: c.getFile("test", "\\nothing", io.BytesIO().write)) == 0xC0000034
    assert status_of(lambda: connect(password="wrong")) == 0xC000006D


@check("srvsvc: shares, sessions, server")
def _():
    c = connect()
    names = {s["shi1_netname"][:-1] for s in c.listShares()}
    assert {"test", "enc", "ro", "IPC$"} <= names, names
    rpc = pipe(srvs.MSRPC_UUID_SRVS, r"\srvsvc")
    one = srvs.hNetrShareGetInfo(rpc, "test\0", 1)["InfoStruct"]["ShareInfo1"]
    assert one["shi1_netname"][:-1] == "test"
    assert denied(lambda: srvs.hNetrSessionEnum(rpc, "\0", "\0", 10)), "sessions are for administrators"
    rpc = pipe(srvs.MSRPC_UUID_SRVS, r"\srvsvc", ADMINISTRATOR)
    sessions = srvs.hNetrSessionEnum(rpc, "\0", "\0", 10)["InfoStruct"]["SessionInfo"]["Level10"]["Buffer"]
    assert {USER, ADMINISTRATOR} <= {s["sesi10_username"][:-1] for s in sessions}
    assert srvs.hNetrServerGetInfo(rpc, 101)["InfoStruct"]["ServerInfo101"]["sv101_version_major"] > 0


@check("srvsvc: an administrator ends the own session, and all others, over it")
def _():
    other = connect()
    rpc = pipe(srvs.MSRPC_UUID_SRVS, r"\srvsvc", ADMINISTRATOR)
    began = time.time()
    try:
        for user in (USER, ADMINISTRATOR):
            srvs.hNetrSessionDel(rpc, "\0", user + "\0")
    except (DCERPCException, SessionError, NetBIOSError, OSError) as e:
        # Its own session is gone before the answer, as it asked.
        assert "timed out" not in str(e).lower(), e
    assert time.time() - began < 10, "the call does not end"
    try:
        other.listPath("test", "\\*")
        raise AssertionError("a session that was ended goes on")
    except (SessionError, NetBIOSError):
        pass
    rpc = pipe(srvs.MSRPC_UUID_SRVS, r"\srvsvc", ADMINISTRATOR)
    left = srvs.hNetrSessionEnum(rpc, "\0", "\0", 10)["InfoStruct"]["SessionInfo"]["Level10"]["Buffer"]
    assert [s["sesi10_username"][:-1] for s in left] == [ADMINISTRATOR], left


@check("wkssvc: the machine")
def _():
    rpc = pipe(wkst.MSRPC_UUID_WKST, r"\wkssvc")
    info = wkst.hNetrWkstaGetInfo(rpc, 100)["WkstaInfo"]["WkstaInfo100"]
    assert len(info["wki100_computername"]) > 1


@check("lsarpc and samr agree on who the user is")
def _():
    rpc = pipe(lsat.MSRPC_UUID_LSAT, r"\lsarpc")
    policy = lsad.hLsarOpenPolicy2(rpc, MAXIMUM_ALLOWED | lsat.POLICY_LOOKUP_NAMES)["PolicyHandle"]
    found = lsat.hLsarLookupNames(rpc, policy, (USER,))
    domain = found["ReferencedDomains"]["Domains"][0]["Sid"].formatCanonical()
    rid = found["TranslatedSids"]["Sids"][0]["RelativeId"]
    back = lsat.hLsarLookupSids(rpc, policy, (f"{domain}-{rid}", "S-1-1-0"))["TranslatedNames"]["Names"]
    assert back[0]["Name"] == USER and back[1]["Name"] == "Everyone", [n["Name"] for n in back]

    def domains_by(user):
        rpc = pipe(samr.MSRPC_UUID_SAMR, r"\samr", user)
        server = samr.hSamrConnect(rpc)["ServerHandle"]
        names = [d["Name"] for d in samr.hSamrEnumerateDomainsInSamServer(rpc, server)["Buffer"]["Buffer"]]
        return rpc, server, {d: samr.hSamrLookupDomainInSamServer(rpc, server, d)["DomainId"] for d in names}

    # Ordinary users look names up; lists of accounts are for administrators.
    rpc, server, ids = domains_by(USER)
    own = [d for d in ids if ids[d].formatCanonical() == domain]
    handle = samr.hSamrOpenDomain(rpc, server, desiredAccess=samr.DOMAIN_LOOKUP, domainId=ids[own[0]])["DomainHandle"]
    rids = samr.hSamrLookupNamesInDomain(rpc, handle, (USER,))["RelativeIds"]["Element"]
    assert rids[0]["Data"] == rid, (rids[0]["Data"], rid)
    assert denied(lambda: samr.hSamrEnumerateUsersInDomain(rpc, handle)), "lists of accounts are for administrators"
    rpc, server, ids = domains_by(ADMINISTRATOR)
    domains = list(ids)
    own = [d for d in domains if ids[d].formatCanonical() == domain]
    assert len(own) == 1, (domains, domain)
    handle = samr.hSamrOpenDomain(rpc, server, domainId=ids[own[0]])["DomainHandle"]
    users = samr.hSamrEnumerateUsersInDomain(rpc, handle)["Buffer"]["Buffer"]
    assert (USER, rid) in [(u["Name"], u["RelativeId"]) for u in users]


finish("impacket")
