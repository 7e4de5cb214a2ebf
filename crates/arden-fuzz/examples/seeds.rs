//! Writes the first corpora: real messages, made by the codecs and by the client halves. Run it again after a
//! new target; it does not touch files of other names.

use arden_auth::{Acceptor, AuthPolicy, MemoryUsers, ServerIdentity, Step, initiator::Initiator};
use arden_wire::{
    FileTime,
    dtyp::*,
    ndr::NdrWriter,
    ntlm,
    rpc::{self, Bind, ContextElement, Request},
    spnego::{NegState, NegToken, NegTokenInit, NegTokenResp, oid},
};
use std::{fs, path::Path, sync::Arc};

fn save(target: &str, name: &str, data: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    fs::create_dir_all(&dir).expect("corpus directory");
    fs::write(dir.join(name), data).expect("corpus file");
}

/// Each message with its length in front.
fn framed(messages: &[&[u8]]) -> Vec<u8> {
    messages.iter().flat_map(|m| [&(m.len() as u16).to_le_bytes()[..], m].concat()).collect()
}

fn descriptors() {
    let user = Sid::new(5, &[21, 1, 2, 3, 1000]);
    let plain = SecurityDescriptor::with_dacl(
        &user,
        &well_known::BUILTIN_USERS,
        Acl::new(vec![
            Ace::deny(&well_known::ANONYMOUS, 0x1F_01FF, 0),
            Ace::allow(&user, 0x1F_01FF, OBJECT_INHERIT_ACE | CONTAINER_INHERIT_ACE),
            Ace::allow(&well_known::CREATOR_OWNER, 0x1000_0000, CONTAINER_INHERIT_ACE | INHERIT_ONLY_ACE),
        ]),
    );
    let mut full = plain.clone();
    full.control |= SE_SACL_PRESENT | SE_DACL_AUTO_INHERITED;
    let kinds = [
        (SYSTEM_AUDIT_ACE_TYPE, vec![]),
        (SYSTEM_MANDATORY_LABEL_ACE_TYPE, vec![]),
        (ACCESS_ALLOWED_CALLBACK_ACE_TYPE, b"artx".to_vec()),
    ];
    let ace = |(kind, extra): (u8, Vec<u8>)| Ace { kind, extra, ..Ace::allow(&well_known::EVERYONE, 2, 0x80) };
    full.sacl = Some(Acl::new(kinds.into_iter().map(ace).collect()));
    let mut object = vec![1, 0, 0, 0];
    object.extend([9; 16]);
    object.extend(user.encode());
    let object = Ace { kind: ACCESS_DENIED_OBJECT_ACE_TYPE, flags: 0, mask: 7, sid: Sid::new(0, &[]), extra: object };
    full.dacl = Some(Acl { revision: 4, aces: vec![object, Ace::allow(&user, 3, 3)] });
    let null = SecurityDescriptor { control: SE_DACL_PRESENT, owner: Some(user.clone()), ..Default::default() };
    for (name, sd) in [("plain", &plain), ("full", &full), ("null", &null)] {
        save("dtyp", name, &sd.encode());
    }
    save("dtyp", "sid", &user.encode());
    save("dtyp", "text", b"S-1-5-21-1-2-3-500");
    save("access", "plain-full", &framed(&[&plain.encode(), &full.encode()]));
    save("access", "full-null", &framed(&[&full.encode(), &null.encode()]));
    save("access", "null-plain", &framed(&[&null.encode(), &plain.encode()]));
}

fn tokens() {
    for (name, spnego, mechanisms) in [
        ("spnego", true, vec![oid::NTLMSSP.to_vec()]),
        ("fallback", true, vec![oid::KRB5.to_vec(), oid::NTLMSSP.to_vec()]),
        ("raw", false, vec![oid::NTLMSSP.to_vec()]),
    ] {
        let users = MemoryUsers::new("FUZZ", Sid::new(5, &[21, 1, 2, 3]));
        let identity = Arc::new(ServerIdentity::stand_alone("fuzz.example.org"));
        let mut server = Acceptor::new(Arc::new(users), identity, AuthPolicy::default());
        let mut client = Initiator::new("user", "FUZZ", "wrong");
        client.spnego = spnego;
        client.mechanisms = mechanisms;
        let mut sent = vec![client.first()];
        while let Ok(Step::Continue(reply)) =
            server.step(sent.last().expect("a token"), FileTime(133_000_000_000_000_000), [7; 8])
        {
            if spnego {
                save("spnego", &format!("{name}-reply{}", sent.len()), &reply);
            } else {
                save("ntlm", "challenge", &reply);
            }
            sent.push(client.second(&reply, [5; 24]).expect("an answer"));
        }
        let all: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        save("acceptor", name, &framed(&all));
        for (i, token) in sent.iter().enumerate() {
            save(if spnego { "spnego" } else { "ntlm" }, &format!("{name}-{i}"), token);
        }
    }
    save("spnego", "hint", &NegTokenInit::encode_hint(&[oid::NEGOEX, oid::NTLMSSP]));
    let last = NegTokenResp {
        neg_state: Some(NegState::AcceptCompleted),
        mech_list_mic: Some(vec![1; 16]),
        ..Default::default()
    };
    assert!(NegToken::parse(&last.encode()).is_ok());
    save("spnego", "last", &last.encode());
    let anonymous = ntlm::Authenticate { flags: 1, lm_response: vec![0], ..Default::default() };
    save("ntlm", "anonymous", &anonymous.encode());
}

/// A stub made by a closure, behind its operation number.
fn call(opnum: u8, put: impl FnOnce(&mut NdrWriter)) -> Vec<u8> {
    let mut w = NdrWriter::new();
    put(&mut w);
    [&[opnum][..], &w.finish()].concat()
}

fn calls() {
    let enumerate = |w: &mut NdrWriter, filters: usize, level: u32| {
        w.unique_string(Some("s"));
        (0..filters).for_each(|_| w.unique_string(None));
        [level, level, 0x20000, 0, 0, u32::MAX, 0].iter().for_each(|v| w.u32(*v));
    };
    let shares = call(15, |w| enumerate(w, 0, 502));
    let sessions = call(12, |w| enumerate(w, 2, 10));
    let files = call(9, |w| enumerate(w, 2, 3));
    let info = call(16, |w| {
        w.unique_string(None);
        w.string("data");
        w.u32(2);
    });
    let with = |choice: u8, messages: &[&[u8]]| [&[choice][..], &framed(messages)].concat();
    save("pipe", "srvsvc", &with(0, &[&shares, &sessions, &files, &info]));
    let workstation = call(0, |w| {
        w.unique_string(None);
        w.u32(102);
    });
    save("pipe", "wkssvc", &with(1, &[&workstation]));

    let mut handle = [0; 20];
    handle[4..8].copy_from_slice(b"ARDN");
    handle[12] = 1;
    let open = call(44, |w| {
        w.unique_string(Some("s"));
        [24, 0, 0, 0, 0, 0, 0x0200_0000].iter().for_each(|v| w.u32(*v));
    });
    let names = call(14, |w| {
        w.handle(&handle);
        [2, 2].iter().for_each(|v| w.u32(*v));
        w.unicode_head("user");
        w.unicode_head("Everyone");
        w.unicode_body("user");
        w.unicode_body("Everyone");
        [0, 0, 1, 0].iter().for_each(|v| w.u32(*v));
    });
    let sids = call(57, |w| {
        w.handle(&handle);
        [1, 0x20000, 1, 0x20004].iter().for_each(|v| w.u32(*v));
        w.sid(&well_known::BUILTIN_ADMINISTRATORS);
        [0, 0, 1, 0, 0, 2].iter().for_each(|v| w.u32(*v));
    });
    let policy = call(46, |w| {
        w.handle(&handle);
        w.u16(12);
    });
    let rights = call(36, |w| {
        w.handle(&handle);
        w.sid(&well_known::BUILTIN_ADMINISTRATORS);
    });
    save("pipe", "lsarpc", &with(2, &[&open, &names, &sids, &policy, &rights]));

    let connect = call(57, |w| {
        w.unique_string(Some("s"));
        w.u32(0x0200_0000);
    });
    let mut second = handle;
    second[12] = 2;
    let mut third = handle;
    third[12] = 3;
    let domain = call(7, |w| {
        w.handle(&handle);
        w.u32(0x0200_0000);
        w.sid(&Sid::new(5, &[21, 1, 2, 3]));
    });
    let users = call(13, |w| {
        w.handle(&second);
        [0, 0, 0xFFFF].iter().for_each(|v| w.u32(*v));
    });
    let user = call(34, |w| {
        w.handle(&second);
        [0x0200_0000, 1000].iter().for_each(|v| w.u32(*v));
    });
    let query = call(36, |w| {
        w.handle(&third);
        w.u16(21);
    });
    let display = call(40, |w| {
        w.handle(&second);
        w.u16(1);
        [0, 100, 0xFFFF].iter().for_each(|v| w.u32(*v));
    });
    save("pipe", "samr", &with(3, &[&connect, &domain, &users, &user, &query, &display]));

    let interface = arden_fuzz::PIPES[0].1;
    let contexts = vec![ContextElement { id: 0, interface, transfer: vec![rpc::NDR64, rpc::NDR32] }];
    let bind = Bind { max_xmit: 4280, max_recv: 4280, group: 0, contexts }.encode(rpc::BIND, 1);
    let request = Request { context: 0, opnum: 15, stub: &shares[1..] };
    let first = request.encode(rpc::PFC_FIRST_FRAG, 2);
    let last = Request { stub: &[], ..request }.encode(rpc::PFC_LAST_FRAG, 2);
    save("pipe", "unbound", &with(4, &[&bind, &first, &last]));
    save("rpc", "bind", &bind);
    save("rpc", "request", &request.encode(3, 2));
    save("rpc", "fault", &rpc::encode_fault(1, 0, 5, true));
}

/// RPC over TCP.
fn tcp() {
    let with = |choice: u8, calls: &[&[u8]]| [&[choice][..], &framed(calls)].concat();
    let call = |opnum: u8, write: &dyn Fn(&mut NdrWriter)| {
        let mut w = NdrWriter::new();
        write(&mut w);
        [&[opnum][..], &w.finish()].concat()
    };
    let register = call(4, &|w| {
        w.u32(0x0002_0000);
        for text in ["fuzz", "data", "10.0.0.1", "client"] {
            w.unique_string(Some(text));
        }
        w.u32(1);
        w.u32(0);
    });
    let old = call(1, &|w| {
        w.u32(0x0001_0001);
        for text in ["fuzz", "10.0.0.1", "client"] {
            w.unique_string(Some(text));
        }
    });
    let mut handle = [6; 20];
    handle[..4].fill(0);
    let of = |opnum| call(opnum, &|w| w.handle(&handle));
    save("tcp", "witness", &with(3, &[&[0], &register, &of(3), &of(2)]));
    save("tcp", "version_1", &with(3, &[&old, &of(3), &of(3), &of(5)]));
    let tower = [0, 0, 5, 0];
    let map = call(3, &|w| {
        w.pointer(false);
        w.pointer(true);
        w.u32(tower.len() as u32);
        w.u32(tower.len() as u32);
        w.bytes(&tower);
        w.handle(&[0; 20]);
        w.u32(1);
    });
    save("tcp", "mapper", &with(2, &[&map, &of(4)]));
    let contexts = vec![ContextElement { id: 0, interface: witness_syntax(), transfer: vec![rpc::NDR32] }];
    let bind = Bind { max_xmit: 4280, max_recv: 4280, group: 0, contexts }.encode(rpc::BIND, 1);
    let trailer = rpc::Trailer { auth_type: 10, level: 6, pad: 0, context: 0 };
    let mut secured = bind.clone();
    trailer.append_token(&mut secured, &ntlm::Negotiate { flags: 0xE208_8297 }.encode());
    let mut last = rpc::encode_auth3(2);
    trailer.append_token(&mut last, b"NTLMSSP");
    let request = Request { context: 0, opnum: 0, stub: &[0; 16] };
    save("tcp", "unbound", &with(0, &[&secured, &last, &request.encode(3, 3)]));
    save("tcp", "bound", &with(1, &[&request.encode(1, 3), &rpc::encode_cancel(3), &request.encode(3, 4)]));
}

/// The witness, [MS-SWN] 1.9.
fn witness_syntax() -> rpc::Syntax {
    let uuid = rpc::uuid(0xCCD8_C074, 0xD0E5, 0x4A40, [0x92, 0xB4, 0xD0, 0x74, 0xFA, 0xA6, 0xBA, 0x28]);
    rpc::Syntax { uuid, version: 0x0001_0001 }
}

/// What the test client of the SMB server sends.
fn smb2() {
    for (target, name, data) in arden_fuzz::seeds() {
        save(target, &name, &data);
    }
    let mut context = vec![0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 8, 0, 0, 0];
    context.extend(b"MxAc\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    save("smb2", "context", &context);
    save("fscc", "zeros", &[0; 64]);
    save("fscc", "ea", b"\0\0\0\0\0\x04\x03\0NAME\0abc");
}

fn between_nodes() {
    use arden_smb::{
        model::Negotiated,
        seam::{Following, Notification, Recipient, Related, VerifiedRequest},
        wire::{FromOwner, LENGTH_BYTES, Origin, Replied, Target, ToOwner, Version, put_run},
    };
    use arden_store::fs::{ClientId, LeaseBreak, OplockLevel};
    use arden_wire::{
        NtStatus,
        smb2::{
            Dialect, FileId, Header, flags,
            negotiate::{Cipher, SigningAlgorithm},
        },
    };
    let mut message = b"\xfeSMB\x40\0".to_vec();
    message.resize(120, 0);
    let negotiated = Negotiated {
        dialect: Dialect::Smb311,
        client_guid: 7,
        client_capabilities: 0x7f,
        client_security_mode: 1,
        client_dialects: vec![0x302, 0x311],
        server_capabilities: 0x7f,
        server_security_mode: 3,
        cipher: Some(Cipher::Aes128Gcm),
        signing: SigningAlgorithm::AesGmac,
        max_transact: 1 << 20,
        max_read: 8 << 20,
        max_write: 8 << 20,
    };
    let file = FileId { persistent: 5, volatile: 5 };
    let request = VerifiedRequest {
        header: Header::parse(&message).expect("a header"),
        message: &message,
        session_serial: 9,
        user: Arc::new(arden_auth::Token::system()),
        client: ClientId(11),
        anonymous: false,
        negotiated: &negotiated,
        ip: [192, 0, 2, 1].into(),
        address: "192.0.2.1:4000",
        encrypted: true,
        async_id: Some(3),
        related: Related { file: Some(file), tree_id: 2, failed: None },
        room: 65536,
    };
    let (mut run, mut compound) = (Vec::new(), Vec::new());
    let origin = Box::new(Origin::of(&request, true));
    put_run(&mut run, 1, Target { pool: 2, epoch: 3 }, &request, &[], None).expect("it fits");
    save("forward", "run", &run[LENGTH_BYTES..]);
    let mut first = Vec::new();
    put_run(&mut first, 1, Target { pool: 2, epoch: 3 }, &request, &[], Some(&origin)).expect("it fits");
    save("forward", "run-version-1", &first[LENGTH_BYTES..]);
    let related = Header { flags: flags::RELATED_OPERATIONS, ..request.header };
    let following = [1, 2].map(|room| Following { header: related, message: &message, room });
    put_run(&mut compound, 1, Target { pool: 2, epoch: 3 }, &request, &following, None).expect("it fits");
    save("forward", "compound", &compound[LENGTH_BYTES..]);
    let to = [
        ("hello", ToOwner::Hello(Version::Two)),
        ("hello-version-1", ToOwner::Hello(Version::One)),
        ("origin", ToOwner::Origin { serial: 9, origin }),
        ("again", ToOwner::Again { number: 1, async_id: 2 }),
        ("end", ToOwner::End { number: 1 }),
        ("session-end", ToOwner::SessionEnd { serial: 9, keep_durable: true }),
        ("ping", ToOwner::Ping(4)),
        ("end-previous", ToOwner::EndPrevious { number: 5, id: 6, user: Sid::new(5, &[21, 1, 2, 3, 1001]) }),
    ];
    for (name, message) in to {
        let mut out = Vec::new();
        message.put(&mut out).expect("it fits");
        save("forward", name, &out[LENGTH_BYTES..]);
    }
    let related = Related { file: None, tree_id: 1, failed: Some(NtStatus::ACCESS_DENIED) };
    let answered = |answer, body| FromOwner::Answered { number: 1, answer, related, body };
    let client = ClientId(11);
    let lease = LeaseBreak { client, key: 12, from: 7, to: 1, ack: true, epoch: 2, version: 2, opens: Vec::new() };
    let from = [
        ("done", answered(Replied::Done(NtStatus::SUCCESS), &b"body"[..])),
        ("error", answered(Replied::Error(NtStatus::BUFFER_TOO_SMALL, vec![1, 2, 3, 4], 1), b"")),
        ("pending", answered(Replied::Pending, b"")),
        ("moved", answered(Replied::Moved, b"")),
        ("not-run", answered(Replied::NotRun, b"")),
        ("resume", FromOwner::Resume { number: 1 }),
        ("lease-break", FromOwner::Notify(Recipient::Client(client), Notification::LeaseBreak(lease))),
        (
            "oplock-break",
            FromOwner::Notify(
                Recipient::Session { id: 1, serial: 2 },
                Notification::OplockBreak { id: file, to: OplockLevel::LevelII },
            ),
        ),
        ("leave", FromOwner::Leave { serial: 9 }),
        ("pong", FromOwner::Pong(4)),
    ];
    for (name, message) in from {
        let mut out = Vec::new();
        message.put(&mut out).expect("it fits");
        save("forward", name, &out[LENGTH_BYTES..]);
    }
}

fn main() {
    between_nodes();
    descriptors();
    tokens();
    calls();
    tcp();
    smb2();
}
