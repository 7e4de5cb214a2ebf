//! The pipe as a state machine: binding, fragments in both directions, faults, limits, hostile input.

mod common;

use arden_rpc::{Pipe, open_pipe};
use arden_wire::{
    NtStatus,
    ndr::{NdrReader, NdrWriter},
    rpc::*,
};

const SRVSVC: Syntax =
    Syntax { uuid: uuid(0x4B32_4FC8, 0x1670, 0x01D3, [0x12, 0x78, 0x5A, 0x47, 0xBF, 0x6E, 0xE1, 0x88]), version: 3 };
const WKSSVC: Syntax =
    Syntax { uuid: uuid(0x6BFF_D098, 0xA112, 0x3610, [0x98, 0x33, 0x46, 0xC3, 0xF8, 0x7E, 0x34, 0x5A]), version: 1 };
const BOTH: u8 = PFC_FIRST_FRAG | PFC_LAST_FRAG;

fn context(id: u16, interface: Syntax, transfer: &[Syntax]) -> ContextElement {
    ContextElement { id, interface, transfer: transfer.to_vec() }
}

fn bind(contexts: Vec<ContextElement>) -> Vec<u8> {
    Bind { max_xmit: 4280, max_recv: 4280, group: 0, contexts }.encode(BIND, 1)
}

fn bound() -> Box<dyn Pipe> {
    let mut pipe = open_pipe("\\PIPE\\SrvSvc", common::context("root")).unwrap();
    let ack = pipe.transceive(&bind(vec![context(0, SRVSVC, &[NDR32])]), 4280).unwrap();
    assert_eq!(Header::parse(&ack.data).unwrap().kind, BIND_ACK);
    pipe
}

/// The result and the reason for each proposed context.
fn results(ack: &[u8]) -> Vec<(u16, u16)> {
    let address = usize::from(u16::from_le_bytes([ack[24], ack[25]]));
    let at = (26 + address).next_multiple_of(4);
    let count = usize::from(ack[at]);
    let word = |i: usize| u16::from_le_bytes([ack[i], ack[i + 1]]);
    (0..count).map(|i| at + 4 + 24 * i).map(|i| (word(i), word(i + 2))).collect()
}

/// NetrServerGetInfo level 100, with a server name of any length.
fn get_info_stub(name: &str) -> Vec<u8> {
    let mut w = NdrWriter::new();
    w.unique_string(Some(name));
    w.u32(100);
    w.finish()
}

fn fault_of(message: &[u8]) -> u32 {
    assert_eq!(Header::parse(message).unwrap().kind, FAULT);
    u32::from_le_bytes(message[24..28].try_into().unwrap())
}

fn assert_is_server_info(response: &[u8]) {
    assert_eq!(Header::parse(response).unwrap().kind, RESPONSE);
    let mut r = NdrReader::new(&response[RESPONSE_HEADER_BYTES..]);
    assert_eq!((r.u32(), r.pointer(), r.u32(), r.pointer()), (Ok(100), Ok(true), Ok(500), Ok(true)));
    assert_eq!((r.string(), r.u32()), (Ok("ARDEN".into()), Ok(0)));
}

#[test]
fn names_of_pipes() {
    for name in ["srvsvc", "\\srvsvc", "PIPE\\wkssvc", "LSARPC", "samr", "lsass"] {
        assert!(open_pipe(name, common::context("root")).is_some(), "{name}");
    }
    for name in ["", "spoolss", "srvsvc2", "\\pipe\\"] {
        assert!(open_pipe(name, common::context("root")).is_none(), "{name}");
    }
}

#[test]
fn contexts_are_accepted_one_by_one() {
    let mut features = NDR32;
    features.uuid[..8].copy_from_slice(&BIND_TIME_FEATURES);
    features.uuid[8..].copy_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
    let unknown = Syntax { uuid: [7; 16], version: 1 };
    let newer = Syntax { version: 4, ..SRVSVC };
    let mut pipe = open_pipe("srvsvc", common::context("root")).unwrap();
    let contexts = vec![
        context(0, SRVSVC, &[NDR32]),
        context(1, SRVSVC, &[NDR64]),
        context(2, SRVSVC, &[features]),
        context(3, unknown, &[NDR32]),
        context(4, newer, &[NDR32]),
        context(5, WKSSVC, &[NDR64, NDR32]),
    ];
    let ack = pipe.transceive(&bind(contexts), 4280).unwrap().data;
    assert_eq!(results(&ack), [(0, 0), (2, 2), (3, 2), (2, 1), (2, 1), (0, 0)]);
    assert_eq!(&ack[26..39], b"\\PIPE\\srvsvc\0");
    // Both accepted contexts work; the refused ones do not.
    let call = |context, opnum| Request { context, opnum, stub: &get_info_stub("x") }.encode(BOTH, 9);
    assert_is_server_info(&pipe.transceive(&call(0, 21), 4280).unwrap().data);
    let wksta = pipe.transceive(&call(5, 0), 4280).unwrap().data;
    assert_eq!(Header::parse(&wksta).unwrap().kind, RESPONSE);
    assert_eq!(fault_of(&pipe.transceive(&call(1, 21), 4280).unwrap().data), 0x1C01_0003);
    // alter_context adds a context.
    let alter = Bind { max_xmit: 0, max_recv: 0, group: 1, contexts: vec![context(6, SRVSVC, &[NDR32])] };
    let resp = pipe.transceive(&alter.encode(ALTER_CONTEXT, 2), 4280).unwrap().data;
    assert_eq!((Header::parse(&resp).unwrap().kind, results(&resp)), (ALTER_CONTEXT_RESP, vec![(0, 0)]));
    assert_is_server_info(&pipe.transceive(&call(6, 21), 4280).unwrap().data);
    // A context cannot be changed into another one.
    let alter = Bind { max_xmit: 0, max_recv: 0, group: 1, contexts: vec![context(6, WKSSVC, &[NDR32])] };
    assert_eq!(fault_of(&pipe.transceive(&alter.encode(ALTER_CONTEXT, 2), 4280).unwrap().data), 0x1C01_000B);
    assert_eq!(pipe.write(&call(0, 21)).unwrap_err(), NtStatus::PIPE_DISCONNECTED);
}

#[test]
fn requests_in_fragments_and_in_pieces() {
    let stub = get_info_stub(&"n".repeat(6000));
    let mut pipe = bound();
    let parts: Vec<&[u8]> = stub.chunks(4000).collect();
    for (i, part) in parts.iter().enumerate() {
        let flags = if i == 0 { PFC_FIRST_FRAG } else { 0 } | if i + 1 == parts.len() { PFC_LAST_FRAG } else { 0 };
        assert_eq!(pipe.read(100).unwrap_err(), NtStatus::PIPE_EMPTY);
        pipe.write(&Request { context: 0, opnum: 21, stub: part }.encode(flags, 3)).unwrap();
    }
    assert_is_server_info(&pipe.read(4280).unwrap().data);
    // One byte at a time, then two at once.
    let call = Request { context: 0, opnum: 21, stub: &get_info_stub("x") }.encode(BOTH, 4);
    call.iter().for_each(|b| pipe.write(&[*b]).unwrap());
    assert_is_server_info(&pipe.read(4280).unwrap().data);
    pipe.write(&[&call[..], &call].concat()).unwrap();
    assert_eq!(pipe.transceive(&call, 4280).unwrap_err(), NtStatus::PIPE_BUSY);
    assert_is_server_info(&pipe.read(4280).unwrap().data);
    assert_is_server_info(&pipe.read(4280).unwrap().data);
    assert_eq!(pipe.available(), 0);
}

#[test]
fn a_short_read_leaves_the_rest_of_the_message() {
    let mut pipe = bound();
    let call = Request { context: 0, opnum: 21, stub: &get_info_stub("x") }.encode(BOTH, 4);
    let first = pipe.transceive(&call, 20).unwrap();
    assert_eq!((first.data.len(), first.more), (20, true));
    let rest = pipe.read(4280).unwrap();
    assert!(!rest.more);
    assert_is_server_info(&[first.data, rest.data].concat());
}

#[test]
fn long_answers_come_in_fragments() {
    let mut view = common::View::new();
    let caller = std::sync::Arc::new(common::token(&view, "root"));
    for i in 0..500 {
        let share = arden_rpc::ShareView { name: format!("share{i}"), ..Default::default() };
        view.shares.push(share);
    }
    let context_of = arden_rpc::PipeContext { view: std::sync::Arc::new(view), caller };
    let mut pipe = open_pipe("srvsvc", context_of).unwrap();
    pipe.transceive(&bind(vec![context(0, SRVSVC, &[NDR32])]), 4280).unwrap();
    let mut w = NdrWriter::new();
    w.unique_string(Some("s"));
    [1, 1, 0x20000, 0, 0, u32::MAX, 0].iter().for_each(|v| w.u32(*v));
    pipe.write(&Request { context: 0, opnum: 15, stub: &w.finish() }.encode(BOTH, 5)).unwrap();
    let mut stub = Vec::new();
    let mut fragments = 0;
    while let Ok(message) = pipe.read(4280) {
        assert!(!message.more && message.data.len() <= 4280);
        stub.extend_from_slice(&message.data[RESPONSE_HEADER_BYTES..]);
        fragments += 1;
    }
    assert!(fragments > 3);
    assert_eq!(stub[stub.len() - 4..], [0; 4]);
    let total = u32::from_le_bytes(stub[stub.len() - 12..stub.len() - 8].try_into().unwrap());
    assert_eq!(total, 503);
}

/// However short its answers are.
#[test]
fn a_write_holds_so_many_calls() {
    let view = common::View::new();
    let caller = std::sync::Arc::new(common::token(&view, "root"));
    let context_of = arden_rpc::PipeContext { view: std::sync::Arc::new(view), caller };
    let mut pipe = open_pipe("srvsvc", context_of).unwrap();
    pipe.transceive(&bind(vec![context(0, SRVSVC, &[NDR32])]), 4280).unwrap();
    let call = Request { context: 0, opnum: 999, stub: &[] }.encode(BOTH, 5);
    pipe.write(&call.repeat(4096)).unwrap();
    for _ in 0..4096 {
        assert!(!pipe.read(4280).unwrap().more);
    }
    pipe.write(&call.repeat(20_000)).unwrap();
    assert_eq!(std::iter::from_fn(|| pipe.read(4280).ok()).count(), 4097);
    assert_eq!(pipe.write(&call), Err(NtStatus::PIPE_DISCONNECTED));
}

#[test]
fn faults() {
    let mut pipe = bound();
    let fault = |pipe: &mut Box<dyn Pipe>, opnum, stub: &[u8]| {
        fault_of(&pipe.transceive(&Request { context: 0, opnum, stub }.encode(BOTH, 4), 4280).unwrap().data)
    };
    assert_eq!(fault(&mut pipe, 999, &get_info_stub("x")), 0x1C01_0002);
    assert_eq!(fault(&mut pipe, 21, &[]), 1783);
    assert_eq!(fault(&mut pipe, 21, &[1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]), 1783);
    // The pipe survives these, but not a protocol error.
    let second_bind = bind(vec![]);
    assert_eq!(fault_of(&pipe.transceive(&second_bind, 4280).unwrap().data), 0x1C01_000B);
    assert_eq!(pipe.write(&second_bind).unwrap_err(), NtStatus::PIPE_DISCONNECTED);
    assert_eq!(pipe.read(10).unwrap_err(), NtStatus::PIPE_DISCONNECTED);
}

#[test]
fn authentication_inside_is_refused() {
    let mut pipe = open_pipe("srvsvc", common::context("root")).unwrap();
    let mut pdu = bind(vec![context(0, SRVSVC, &[NDR32])]);
    // An NTLM verifier.
    pdu.extend_from_slice(&[10, 2, 0, 0, 0, 0, 0, 0, b'N', b'T', b'L', b'M']);
    let length = pdu.len() as u16;
    pdu[8..10].copy_from_slice(&length.to_le_bytes());
    pdu[10] = 4;
    let nak = pipe.transceive(&pdu, 4280).unwrap().data;
    assert_eq!((Header::parse(&nak).unwrap().kind, nak[16]), (BIND_NAK, 8));
    // The client may bind again without authentication.
    let ack = pipe.transceive(&bind(vec![context(0, SRVSVC, &[NDR32])]), 4280).unwrap().data;
    assert_eq!(Header::parse(&ack).unwrap().kind, BIND_ACK);
}

#[test]
fn a_request_without_end_is_stopped() {
    let mut pipe = bound();
    let part = [0; 4000];
    let mut flags = PFC_FIRST_FRAG;
    for _ in 0..400 {
        if pipe.write(&Request { context: 0, opnum: 21, stub: &part }.encode(flags, 3)).is_err() {
            assert_eq!(fault_of(&pipe.read(4280).unwrap().data), 0x1C01_000B);
            return;
        }
        flags = 0;
    }
    panic!("took everything");
}

#[test]
fn an_orphaned_call_is_forgotten() {
    let mut pipe = bound();
    let stub = get_info_stub("x");
    pipe.write(&Request { context: 0, opnum: 21, stub: &stub }.encode(PFC_FIRST_FRAG, 8)).unwrap();
    let mut orphaned = Request { context: 0, opnum: 0, stub: &[] }.encode(BOTH, 8);
    orphaned[2] = ORPHANED;
    pipe.write(&orphaned).unwrap();
    let call = Request { context: 0, opnum: 21, stub: &stub }.encode(BOTH, 9);
    assert_is_server_info(&pipe.transceive(&call, 4280).unwrap().data);
}

fn bind_group(user: &str, group: u32) -> (Box<dyn Pipe>, Vec<u8>) {
    let mut pipe = open_pipe("lsarpc", common::context(user)).unwrap();
    let contexts = vec![context(0, LSARPC, &[NDR32])];
    let bind = Bind { max_xmit: 4280, max_recv: 4280, group, contexts }.encode(BIND, 1);
    let answer = pipe.transceive(&bind, 4280).unwrap().data;
    (pipe, answer)
}

#[test]
fn handles_are_shared_within_an_association_group() {
    let group_of = |ack: &[u8]| u32::from_le_bytes(ack[20..24].try_into().unwrap());
    let (mut first, ack) = bind_group("root", 0);
    let group = group_of(&ack);
    let (mut second, ack) = bind_group("root", group);
    assert_eq!(group_of(&ack), group);
    let (mut stranger, ack) = bind_group("root", 0);
    assert_ne!(group_of(&ack), group);
    let (_, nak) = bind_group("alice", group);
    assert_eq!(Header::parse(&nak).unwrap().kind, BIND_NAK);

    let mut open = NdrWriter::new();
    open.unique_string(None);
    [24, 0, 0, 0, 0, 0, 0x0200_0000].iter().for_each(|v| open.u32(*v));
    let open = Request { context: 0, opnum: 44, stub: &open.finish() }.encode(BOTH, 2);
    let handle = first.transceive(&open, 4280).unwrap().data[RESPONSE_HEADER_BYTES..][..20].to_vec();
    let close = Request { context: 0, opnum: 0, stub: &handle }.encode(BOTH, 3);
    assert_eq!(fault_of(&stranger.transceive(&close, 4280).unwrap().data), 0x1C00_001A);
    assert_eq!(Header::parse(&second.transceive(&close, 4280).unwrap().data).unwrap().kind, RESPONSE);
    assert_eq!(fault_of(&first.transceive(&close, 4280).unwrap().data), 0x1C00_001A);

    drop((first, second));
    let (_, nak) = bind_group("root", group);
    assert_eq!(Header::parse(&nak).unwrap().kind, BIND_NAK);
}

#[test]
fn users_see_less_than_administrators() {
    let mut pipe = open_pipe("srvsvc", common::context("alice")).unwrap();
    pipe.transceive(&bind(vec![context(0, SRVSVC, &[NDR32])]), 4280).unwrap();
    let mut w = NdrWriter::new();
    w.unique_string(None);
    w.u32(42);
    let call = Request { context: 0, opnum: 11, stub: &w.finish() }.encode(BOTH, 9);
    let answer = pipe.transceive(&call, 4280).unwrap().data;
    assert_eq!(answer[RESPONSE_HEADER_BYTES..], [5, 0, 0, 0]);
}

#[test]
fn ordinary_users_translate_names_and_see_no_lists() {
    let mut pipe = open_pipe("samr", common::context("alice")).unwrap();
    pipe.transceive(&bind(vec![context(0, SAMR, &[NDR32])]), 4280).unwrap();
    let mut call = |opnum, w: NdrWriter| {
        let call = Request { context: 0, opnum, stub: &w.finish() }.encode(BOTH, 9);
        pipe.transceive(&call, 4280).unwrap().data
    };
    // SamrConnect2, then SamrOpenDomain.
    let answer = call(57, NdrWriter::new());
    let server: [u8; 20] = answer[RESPONSE_HEADER_BYTES..][..20].try_into().unwrap();
    let mut w = NdrWriter::new();
    w.handle(&server);
    w.u32(0x0200_0000);
    w.sid(&common::machine());
    let answer = call(7, w);
    let domain: [u8; 20] = answer[RESPONSE_HEADER_BYTES..][..20].try_into().unwrap();
    assert_ne!(domain, [0; 20]);
    let asking = |names: &[&str]| {
        let mut w = NdrWriter::new();
        w.handle(&domain);
        let count = names.len() as u32;
        [count, 1000, 0, count].iter().for_each(|v| w.u32(*v));
        names.iter().for_each(|n| w.unicode_head(n));
        names.iter().for_each(|n| w.unicode_body(n));
        w
    };
    let answer = call(17, asking(&["root", "nobody"]));
    let mut r = NdrReader::new(&answer[RESPONSE_HEADER_BYTES..]);
    assert_eq!((r.u32(), r.pointer(), r.u32(), r.u32(), r.u32()), (Ok(2), Ok(true), Ok(2), Ok(1001), Ok(0)));
    // Users, groups, aliases, display information.
    for opnum in [11, 13, 15, 40, 48, 51] {
        let mut w = NdrWriter::new();
        w.handle(&domain);
        [0, 0, 0xFFFF, 0xFFFF].iter().for_each(|v| w.u32(*v));
        assert_eq!(fault_of(&call(opnum, w)), 5, "{opnum}");
    }
}

#[test]
fn hostile_stubs_never_panic() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for (name, interface, opnums) in
        [("srvsvc", SRVSVC, 48), ("wkssvc", WKSSVC, 24), ("lsarpc", LSARPC, 132), ("samr", SAMR, 70)]
    {
        let user = if random() % 2 == 0 { "root" } else { "alice" };
        let mut pipe = open_pipe(name, common::context(user)).unwrap();
        pipe.transceive(&bind(vec![context(0, interface, &[NDR32])]), 4280).unwrap();
        for _ in 0..4000 {
            let length = random() as usize % 120;
            // Small numbers reach more code than random ones.
            let stub: Vec<u8> =
                (0..length).map(|i| if i % 4 == 0 { random() as u8 % 5 } else { (random() % 9 / 8) as u8 }).collect();
            let call = Request { context: 0, opnum: (random() % opnums) as u16, stub: &stub }.encode(BOTH, 4);
            pipe.write(&call).unwrap();
            while pipe.read(4280).is_ok() {}
        }
    }
}

const LSARPC: Syntax =
    Syntax { uuid: uuid(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0x00, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAB]), version: 0 };
const SAMR: Syntax =
    Syntax { uuid: uuid(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0x00, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAC]), version: 1 };

/// The cost of a write is linear in its length: half a million PDUs that consist of a header are parsed without moving
/// the rest of the buffer for each.
#[test]
fn a_write_of_many_small_messages_is_cheap() {
    let mut pipe = bound();
    // CO_CANCEL of an unknown call.
    let one = [5, 0, 18, 3, 0x10, 0, 0, 0, 16, 0, 0, 0, 9, 0, 0, 0];
    let many = one.repeat((8 << 20) / one.len());
    let started = std::time::Instant::now();
    pipe.write(&many).unwrap();
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert_eq!(pipe.available(), 0);
    // Messages in pieces are still joined.
    let call = bind(vec![context(0, SRVSVC, &[NDR32])]);
    let mut fresh = open_pipe("srvsvc", common::context("root")).unwrap();
    for byte in &call {
        fresh.write(std::slice::from_ref(byte)).unwrap();
    }
    assert_eq!(Header::parse(&fresh.read(4280).unwrap().data).unwrap().kind, BIND_ACK);
}
