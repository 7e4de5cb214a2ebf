# Calls every interface with Samba's bindings and checks what they decode.
import sys
from samba import credentials, param, NTSTATUSError, WERRORError
from samba.dcerpc import srvsvc, wkssvc, lsa, samr, security

SRV, LSA, SAM, SRV_USER, SAM_USER = sys.argv[1:]
lp = param.LoadParm()
creds = credentials.Credentials()
creds.guess(lp)
creds.set_anonymous()
SDDL = "O:BAG:SYD:(A;;0x001f01ff;;;WD)"
MACHINE = security.dom_sid("S-1-5-21-1001-2002-3003")


def bind(cls, port):
    return cls("ncacn_ip_tcp:127.0.0.1[%s]" % port, lp, creds)


def fails(code, f, *args):
    try:
        f(*args)
    except (NTSTATUSError, WERRORError, RuntimeError) as e:
        assert e.args[0] == code, "%s instead of %s: %s" % (hex(e.args[0]), hex(code), e.args)
        return
    raise AssertionError("%s did not fail" % f)


def enum(call, ctr_class, level, cls, *filters, preferred=0xffffffff, resume=0):
    ctr = ctr_class()
    ctr.level = level
    ctr.ctr = cls()
    return call("\\\\ARDEN", *filters, ctr, preferred, resume)


def shares(conn, level, preferred=0xffffffff, resume=0):
    cls = getattr(srvsvc, "NetShareCtr%d" % level)
    return enum(conn.NetShareEnumAll, srvsvc.NetShareInfoCtr, level, cls, preferred=preferred, resume=resume)


c = bind(srvsvc.srvsvc, SRV)
for level in (0, 1, 2, 501, 502):
    ctr, total, resume = shares(c, level)
    assert total == 3 and ctr.ctr.count == 3, (level, total)
    assert [s.name for s in ctr.ctr.array] == ["data", "home", "IPC$"], level
    if level in (1, 2, 501, 502):
        assert ctr.ctr.array[0].comment == "Daten für alle"
        assert ctr.ctr.array[2].type == 0x80000003
    if level in (2, 502):
        assert ctr.ctr.array[0].path == "C:\\data"
    if level == 502:
        sd = ctr.ctr.array[0].sd_buf.sd
        assert sd.as_sddl() == SDDL, sd.as_sddl()
try:
    ctr, total, resume = shares(c, 1, preferred=40)
    raise AssertionError("MORE_DATA expected")
except WERRORError as e:
    assert e.args[0] == 234
for level in (0, 1, 2, 501, 502, 1005):
    info = c.NetShareGetInfo("ARDEN", "DATA", level)
    if level not in (1005,):
        assert info.name == "data"
fails(2310, c.NetShareGetInfo, "ARDEN", "nothing", 1)
info = c.NetSrvGetInfo("ARDEN", 102)
assert (info.server_name, info.comment, info.version_major) == ("ARDEN", "a file server", 10)
assert c.NetSrvGetInfo("ARDEN", 101).comment == "a file server"
assert c.NetSrvGetInfo("ARDEN", 100).platform_id == 500
fails(124, c.NetSrvGetInfo, "ARDEN", 77)
for level in (0, 1, 2, 10, 502):
    cls = getattr(srvsvc, "NetSessCtr%d" % level)
    ctr, total, resume = enum(c.NetSessEnum, srvsvc.NetSessInfoCtr, level, cls, None, None)
    assert total == 1 and ctr.ctr.array[0].client == "10.0.0.9", level
    if level in (1, 2, 10, 502):
        assert ctr.ctr.array[0].user == "alice" and ctr.ctr.array[0].idle_time == 5
for level in (2, 3):
    cls = getattr(srvsvc, "NetFileCtr%d" % level)
    ctr, total, resume = enum(c.NetFileEnum, srvsvc.NetFileInfoCtr, level, cls, None, None)
    assert total == 1 and ctr.ctr.array[0].fid == 42
    if level == 3:
        assert ctr.ctr.array[0].path == "C:\\data\\a.txt" and ctr.ctr.array[0].permissions == 3
assert c.NetFileGetInfo("ARDEN", 42, 3).user == "alice"
for level in (0, 1):
    cls = getattr(srvsvc, "NetConnCtr%d" % level)
    ctr, total, resume = enum(c.NetConnEnum, srvsvc.NetConnInfoCtr, level, cls, "data")
    assert total == 1 and ctr.ctr.array[0].conn_id == 5
c.NetFileClose("ARDEN", 42)
fails(2314, c.NetFileClose, "ARDEN", 43)
c.NetSessDel("ARDEN", "\\\\10.0.0.9", "alice")
fails(2312, c.NetSessDel, "ARDEN", "\\\\10.0.0.1", None)
tod = c.NetRemoteTOD("ARDEN")
assert (tod.year, tod.month, tod.day, tod.elapsed) == (2026, 11, 18, 1795000000), (tod.year, tod.month, tod.day)
c.NetNameValidate("ARDEN", "share", 9, 0)
fails(123, c.NetNameValidate, "ARDEN", "sh/are", 9, 0)
assert c.NetShareCheck("ARDEN", "C:\\data") == 0
sd = c.NetGetFileSecurity("ARDEN", "data", "\\a", 7)
assert sd.sd.as_sddl() == SDDL

assert c.NetDiskEnum(None, 0, srvsvc.NetDiskInfo(), 0xffffffff, 0)[1] == 0
ctr, total, resume = enum(c.NetTransportEnum, srvsvc.NetTransportInfoCtr, 0, srvsvc.NetTransportCtr0)
assert total == 0
fails(50, c.NetShareDel, "ARDEN", "data", 0)
fails(124, c.NetSrvGetInfo, "ARDEN", 502)
fails(124, c.NetSrvGetInfo, "ARDEN", 77)
fails(124, c.NetShareGetInfo, "ARDEN", "data", 1007)

u = bind(srvsvc.srvsvc, SRV_USER)
assert shares(u, 1)[1] == 3
fails(5, shares, u, 2)
fails(5, u.NetSrvGetInfo, "ARDEN", 102)
fails(5, u.NetFileClose, "ARDEN", 42)
fails(5, u.NetShareGetInfo, "ARDEN", "data", 502)

w = bind(wkssvc.wkssvc, SRV)
for level in (100, 101, 102):
    info = w.NetWkstaGetInfo("ARDEN", level)
    assert (info.server_name, info.domain_name, info.version_major) == ("ARDEN", "WORKGROUP", 10)
assert info.logged_on_users == 1
for level in (0, 1):
    i = wkssvc.NetWkstaEnumUsersInfo()
    i.level = level
    i.ctr = getattr(wkssvc, "NetWkstaEnumUsersCtr%d" % level)()
    i, total, resume = w.NetWkstaEnumUsers("ARDEN", i, 0xffffffff, 0)
    assert total == 1

l = bind(lsa.lsarpc, LSA)
attr = lsa.ObjectAttribute()
attr.sec_qos = lsa.QosInfo()
h = l.OpenPolicy2("\\\\ARDEN", attr, 0x02000000)
h1 = l.OpenPolicy(ord("\\"), attr, 0x801)
l.Close(h1)
info = l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_ACCOUNT_DOMAIN)
assert info.name.string == "ARDEN" and info.sid == MACHINE
info = l.QueryInfoPolicy2(h, lsa.LSA_POLICY_INFO_DNS)
assert info.name.string == "WORKGROUP" and info.sid is None
info = l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_DOMAIN)
assert info.name.string == "WORKGROUP"
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_ROLE).role == 3
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_AUDIT_LOG).next_audit_record == 0
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_AUDIT_EVENTS).count == 9
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_PD).name.string == ""
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_REPLICA).source.string == ""
assert l.QueryInfoPolicy(h, lsa.LSA_POLICY_INFO_QUOTA).paged_pool == 0


def sid_array(texts):
    a = lsa.SidArray()
    ptrs = []
    for t in texts:
        p = lsa.SidPtr()
        p.sid = security.dom_sid(t)
        ptrs.append(p)
    a.num_sids = len(ptrs)
    a.sids = ptrs
    return a


known = ["S-1-5-21-1001-2002-3003-1000", "S-1-5-32-544", "S-1-1-0", "S-1-5-18", "S-1-5-21-1001-2002-3003-2000"]
names = ["alice", "Administrators", "Everyone", "SYSTEM", "Staff"]
uses = [1, 4, 5, 5, 4]
doms, out, count = l.LookupSids(h, sid_array(known), lsa.TransNameArray(), 1, 0)
assert [n.name.string for n in out.names] == names and count == 5
assert [n.sid_type for n in out.names] == uses
assert [doms.domains[n.sid_index].name.string for n in out.names] == ["ARDEN", "BUILTIN", "", "NT AUTHORITY", "ARDEN"]
assert doms.domains[out.names[0].sid_index].sid == MACHINE
doms, out, count = l.LookupSids2(h, sid_array(known), lsa.TransNameArray2(), 1, 0, 0, 2)
assert [n.name.string for n in out.names] == names and count == 5


def strings(texts):
    out = []
    for t in texts:
        s = lsa.String()
        s.string = t
        out.append(s)
    return out


asked = ["ARDEN\\alice", "administrators", "everyone", "NT AUTHORITY\\system", "staff"]
doms, out, count = l.LookupNames(h, strings(asked), lsa.TransSidArray(), 1, 0)
assert [s.rid for s in out.sids] == [1000, 544, 0, 18, 2000] and count == 5
assert [s.sid_type for s in out.sids] == uses
doms, out, count = l.LookupNames2(h, strings(asked), lsa.TransSidArray2(), 1, 0, 0, 2)
assert [s.rid for s in out.sids] == [1000, 544, 0, 18, 2000]
doms, out, count = l.LookupNames3(h, strings(asked), lsa.TransSidArray3(), 1, 0, 0, 2)
assert [str(s.sid) for s in out.sids] == known
try:
    l.LookupNames3(h, strings(["nobody"]), lsa.TransSidArray3(), 1, 0, 0, 2)
    raise AssertionError
except NTSTATUSError as e:
    assert e.args[0] == 0xC0000073
resume, privs = l.EnumPrivs(h, 0, 100)
assert "SeBackupPrivilege" in [p.name.string for p in privs.privs]
assert l.LookupPrivValue(h, strings(["SeBackupPrivilege"])[0]).low == 17
luid = lsa.LUID()
luid.low = 18
assert l.LookupPrivName(h, luid).string == "SeRestorePrivilege"
name, language = l.LookupPrivDisplayName(h, strings(["SeBackupPrivilege"])[0], 0, 0)
assert name.string == "Back up files and directories"
resume, sids = l.EnumAccounts(h, 0, 100)
assert str(sids.sids[0].sid) == "S-1-5-32-544"
rights = l.EnumAccountRights(h, security.dom_sid("S-1-5-32-544"))
assert "SeTakeOwnershipPrivilege" in [n.string for n in rights.names]
sids = l.EnumAccountsWithUserRight(h, strings(["SeRestorePrivilege"])[0])
assert sids.num_sids == 2
l.Close(h)

s = bind(samr.samr, SAM)
h = s.Connect2("\\\\ARDEN", 0x02000000)
info = samr.ConnectInfo1()
info.client_version = 2
level, out, h5 = s.Connect5("\\\\ARDEN", 0x02000000, 1, info)
assert out.client_version == 3
s.Connect4("\\\\ARDEN", 2, 0x02000000)
s.Connect(ord("A"), 0x02000000)
resume, doms, n = s.EnumDomains(h, 0, 1000)
assert [d.name.string for d in doms.entries] == ["ARDEN", "Builtin"]
assert s.LookupDomain(h, strings(["arden"])[0]) == MACHINE
fails(0xC00000DF, s.LookupDomain, h, strings(["other"])[0])
d = s.OpenDomain(h, 0x02000000, MACHINE)
b = s.OpenDomain(h, 0x02000000, security.dom_sid("S-1-5-32"))
resume, users, n = s.EnumDomainUsers(d, 0, 0, 0xffff)
assert [(u.idx, u.name.string) for u in users.entries] == [(1000, "alice"), (1001, "root")]
resume, groups, n = s.EnumDomainGroups(d, 0, 0xffff)
assert [(g.idx, g.name.string) for g in groups.entries] == [(513, "None")]
resume, aliases, n = s.EnumDomainAliases(d, 0, 0xffff)
assert [g.name.string for g in aliases.entries] == ["Staff"]
resume, aliases, n = s.EnumDomainAliases(b, 0, 0xffff)
assert "Administrators" in [g.name.string for g in aliases.entries]
rids, types = s.LookupNames(d, strings(["root", "None"]))
assert list(rids.ids) == [1001, 513] and list(types.ids) == [1, 2]
names, types = s.LookupRids(d, [1000, 2000])
assert [n.string for n in names.names] == ["alice", "Staff"]
u = s.OpenUser(d, 0x02000000, 1000)
fails(0xC0000064, s.OpenUser, d, 0x02000000, 5000)
full = s.QueryUserInfo(u, 21)
assert (full.account_name.string, full.full_name.string, full.description.string) == ("alice", "Alice Ärger", "a user")
assert (full.rid, full.primary_gid, full.acct_flags) == (1000, 513, 0x210)
assert full.logon_hours.units_per_week == 168 and list(full.logon_hours.bits) == [255] * 21
for level in (1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 20):
    i = s.QueryUserInfo2(u, level)
    if level in (1, 3, 5, 6, 7):
        assert i.account_name.string == "alice"
    if level in (3, 5):
        assert (i.rid, i.acct_flags, i.full_name.string) == (1000, 0x210, "Alice Ärger"), level
        assert list(i.logon_hours.bits) == [255] * 21
    if level == 5:
        assert i.description.string == "a user"
groups = s.GetGroupsForUser(u)
assert [g.rid for g in groups.rids] == [513]
for level in (1, 2, 3, 5, 6, 8, 9, 11, 12):
    i = s.QueryDomainInfo(d, level)
    if level == 2:
        assert (i.domain_name.string, i.num_users, i.num_groups, i.num_aliases) == ("ARDEN", 2, 1, 1)
    if level == 11:
        assert (i.general.domain_name.string, i.general.num_users) == ("ARDEN", 2)
        assert i.lockout_duration in (-18000000000, 2**64 - 18000000000), i.lockout_duration
    if level == 5:
        assert i.domain_name.string == "ARDEN"
    if level == 1:
        assert abs(i.max_password_age) == 0x8000000000000000 and i.min_password_age == 0, i.max_password_age
for level, first in ((1, "alice"), (3, "None"), (4, "alice"), (5, "None")):
    total, returned, i = s.QueryDisplayInfo(d, level, 0, 100, 0xffff)
    assert i.entries[0].account_name.string == first, level
g = s.OpenGroup(d, 0x02000000, 513)
assert s.QueryGroupInfo(g, 1).num_members == 2
assert list(s.QueryGroupMember(g).rids) == [1000, 1001]
a = s.OpenAlias(b, 0x02000000, 544)
assert s.QueryAliasInfo(a, 1).num_members == 1
assert [str(x.sid) for x in s.GetMembersInAlias(a).sids] == [str(MACHINE) + "-1001"]
assert list(s.GetAliasMembership(b, sid_array([str(MACHINE) + "-1001"])).ids) == [544]
assert s.RidToSid(d, 1000) == security.dom_sid(str(MACHINE) + "-1000")
s.GetDomPwInfo(None)
s.GetUserPwInfo(u)
s.Close(u)

# An ordinary user translates names, and reads the own account; there are no lists, members or others' accounts.
DENIED = 0xC0000022
s = bind(samr.samr, SAM_USER)
s.Connect5("\\\\ARDEN", 0x02000000, 1, info)
s.Connect4("\\\\ARDEN", 2, 0x02000000)
h = s.Connect2("\\\\ARDEN", 0x02000000)
resume, doms, n = s.EnumDomains(h, 0, 1000)
assert [d.name.string for d in doms.entries] == ["ARDEN", "Builtin"]
assert s.LookupDomain(h, strings(["arden"])[0]) == MACHINE
d = s.OpenDomain(h, 0x02000000, MACHINE)
b = s.OpenDomain(h, 0x02000000, security.dom_sid("S-1-5-32"))
rids, types = s.LookupNames(d, strings(["ROOT", "None", "staff", "nobody"]))
assert (list(rids.ids), list(types.ids)) == ([1001, 513, 2000, 0], [1, 2, 4, 8])
assert list(s.LookupNames(b, strings(["administrators"]))[0].ids) == [544]
fails(0xC0000073, s.LookupNames, b, strings(["root"]))
names, types = s.LookupRids(d, [1000, 513, 2000, 7])
assert [n.string for n in names.names] == ["alice", "None", "Staff", ""]
assert s.RidToSid(d, 1000) == security.dom_sid(str(MACHINE) + "-1000")
own = s.OpenUser(d, 0x02000000, 1000)
assert s.QueryUserInfo(own, 21).account_name.string == "alice"
assert [g.rid for g in s.GetGroupsForUser(own).rids] == [513]
assert s.GetAliasMembership(b, sid_array([str(MACHINE) + "-1000"])).count == 0
assert s.QueryDomainInfo(d, 5).domain_name.string == "ARDEN"
s.GetDomPwInfo(None)
s.GetUserPwInfo(own)
for refused in (
    (s.OpenUser, d, 0x02000000, 1001),
    (s.OpenGroup, d, 0x02000000, 513),
    (s.OpenAlias, b, 0x02000000, 544),
    (s.EnumDomainUsers, d, 0, 0, 0xFFFF),
    (s.EnumDomainGroups, d, 0, 0xFFFF),
    (s.EnumDomainAliases, d, 0, 0xFFFF),
    (s.QueryDisplayInfo, d, 1, 0, 100, 0xFFFF),
    (s.QueryDomainInfo, d, 2),
    (s.QueryDomainInfo2, d, 11),
    (s.GetAliasMembership, b, sid_array([str(MACHINE) + "-1001"])),
):
    fails(DENIED, *refused)
print("ok")
