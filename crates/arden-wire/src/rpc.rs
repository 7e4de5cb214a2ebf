//! PDUs of connection-oriented RPC, [C706] chapter 12 and [MS-RPCE] 2.2.2, little-endian. Refuses big-endian peers.
//! [`Header::auth_length`] says that a security trailer is there, which [`Trailer::split`] decodes.

use crate::{
    Malformed,
    cursor::{Put, Reader},
};

// PDU types, [C706] 12.6.3.1 and [MS-RPCE] 2.2.2.10.
pub const REQUEST: u8 = 0;
pub const RESPONSE: u8 = 2;
pub const FAULT: u8 = 3;
pub const BIND: u8 = 11;
pub const BIND_ACK: u8 = 12;
pub const BIND_NAK: u8 = 13;
pub const ALTER_CONTEXT: u8 = 14;
pub const ALTER_CONTEXT_RESP: u8 = 15;
pub const AUTH3: u8 = 16;
pub const CO_CANCEL: u8 = 18;
pub const ORPHANED: u8 = 19;

// Flags of the common header, [C706] 12.6.3.1.
pub const PFC_FIRST_FRAG: u8 = 0x01;
pub const PFC_LAST_FRAG: u8 = 0x02;
/// In bind, alter_context and their answers: the signature covers the header too, [MS-RPCE] 2.2.2.3.
pub const PFC_SUPPORT_HEADER_SIGN: u8 = 0x04;
pub const PFC_CONC_MPX: u8 = 0x10;
pub const PFC_DID_NOT_EXECUTE: u8 = 0x20;
pub const PFC_OBJECT_UUID: u8 = 0x80;

/// Length of the common header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a response fragment besides its stub: the common header and the fixed fields.
pub const RESPONSE_HEADER_BYTES: usize = 24;
/// Presentation contexts, or transfer syntaxes of one context, in one PDU; more are malformed.
const CONTEXTS_MAX: usize = 64;

/// p_syntax_id_t, [C706] 12.6.3.1: the UUID of an interface or a transfer syntax in its wire form, and a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syntax {
    pub uuid: [u8; 16],
    /// Major version in the low half, minor version in the high half.
    pub version: u32,
}

/// The wire form of a UUID that is given by the numbers of its text form.
pub const fn uuid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// NDR 2.0, [MS-RPCE] 2.2.4.12: the only transfer syntax that is supported.
pub const NDR32: Syntax =
    Syntax { uuid: uuid(0x8A88_5D04, 0x1CEB, 0x11C9, [0x9F, 0xE8, 0x08, 0x00, 0x2B, 0x10, 0x48, 0x60]), version: 2 };
/// NDR64, [MS-RPCE] 2.2.5.1, which is not supported.
pub const NDR64: Syntax =
    Syntax { uuid: uuid(0x7171_0533, 0xBEBA, 0x4937, [0x83, 0x19, 0xB5, 0xDB, 0xEF, 0x9C, 0xCC, 0x36]), version: 1 };
/// The first half of the UUID of bind time feature negotiation, [MS-RPCE] 3.3.1.5.3. The second half holds the
/// features.
pub const BIND_TIME_FEATURES: [u8; 8] = [0x2C, 0x1C, 0xB7, 0x6C, 0x12, 0x98, 0x40, 0x45];

impl Syntax {
    fn read(r: &mut Reader<'_>) -> Result<Syntax, Malformed> {
        Ok(Syntax { uuid: r.array()?, version: r.u32()? })
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.uuid);
        out.put_u32(self.version);
    }

    /// The features that this pseudo transfer syntax asks for, [MS-RPCE] 2.2.2.14; `None` for other syntaxes.
    pub fn features(&self) -> Option<u16> {
        if self.uuid[..8] != BIND_TIME_FEATURES {
            return None;
        }
        Some(u16::from_le_bytes([self.uuid[8], self.uuid[9]]))
    }
}

/// The common header of a PDU, [C706] 12.6.3.1. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: u8,
    pub flags: u8,
    pub frag_length: u16,
    pub auth_length: u16,
    pub call_id: u32,
}

impl Header {
    /// Decodes the header at the start of `bytes`, which may hold less than the whole PDU.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u8()? != 5 || r.u8()? > 1 {
            return Err(Malformed("RPC version"));
        }
        let kind = r.u8()?;
        let flags = r.u8()?;
        if r.array::<4>()?[0] != 0x10 {
            return Err(Malformed("RPC data representation"));
        }
        let header = Header { kind, flags, frag_length: r.u16()?, auth_length: r.u16()?, call_id: r.u32()? };
        if usize::from(header.frag_length) < HEADER_BYTES {
            return Err(Malformed("RPC fragment length"));
        }
        Ok(header)
    }

    /// Whether this is the first fragment.
    pub fn is_first(&self) -> bool {
        self.flags & PFC_FIRST_FRAG != 0
    }
    /// Whether this is the last fragment.
    pub fn is_last(&self) -> bool {
        self.flags & PFC_LAST_FRAG != 0
    }
}

/// Begins a PDU with its header; [`finish`] sets the fragment length.
fn start(kind: u8, flags: u8, call_id: u32) -> Vec<u8> {
    let mut out = vec![5, 0, kind, flags, 0x10, 0, 0, 0];
    out.put_u16(0);
    out.put_u16(0);
    out.put_u32(call_id);
    out
}

fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let length = out.len() as u16;
    out.patch_u16(8, length);
    out
}

/// Authentication types, [MS-RPCE] 2.2.1.1.7.
pub mod auth_type {
    pub const SPNEGO: u8 = 9;
    pub const NTLM: u8 = 10;
}

/// Authentication levels, [MS-RPCE] 2.2.1.1.8.
pub mod auth_level {
    pub const CONNECT: u8 = 2;
    pub const INTEGRITY: u8 = 5;
    pub const PRIVACY: u8 = 6;
}

/// Length of a sec_trailer in bytes, without its token.
pub const TRAILER_BYTES: usize = 8;

/// sec_trailer, [MS-RPCE] 2.2.2.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    pub auth_type: u8,
    pub level: u8,
    /// Padding in front of the trailer, in bytes.
    pub pad: u8,
    pub context: u32,
}

impl Trailer {
    /// The trailer of a whole PDU, where the PDU's body ends (the padding left out), and where the trailer begins. The
    /// token is what comes behind it.
    ///
    /// # Errors
    /// The lengths do not fit together.
    pub fn split(header: &Header, pdu: &[u8]) -> Result<(Trailer, usize, usize), Malformed> {
        let bad = Malformed("RPC security trailer");
        let token = usize::from(header.auth_length);
        let at = pdu.len().checked_sub(token + TRAILER_BYTES).filter(|at| *at >= HEADER_BYTES).ok_or(bad)?;
        let mut r = Reader::new(&pdu[at..]);
        let (auth_type, level, pad) = (r.u8()?, r.u8()?, r.u8()?);
        r.skip(1)?;
        let trailer = Trailer { auth_type, level, pad, context: r.u32()? };
        let end = at.checked_sub(usize::from(pad)).filter(|end| *end >= HEADER_BYTES);
        Ok((trailer, end.ok_or(Malformed("RPC padding"))?, at))
    }

    /// Appends padding, the trailer and an empty token of `token_bytes` to a PDU, whose header is changed for it. The part
    /// before the trailer becomes a multiple of `align` bytes, counted from `from`. Returns where the token is.
    pub fn append(&self, pdu: &mut Vec<u8>, from: usize, align: usize, token_bytes: usize) -> usize {
        let body = pdu.len() - from;
        let pad = body.next_multiple_of(align) - body;
        pdu.resize(pdu.len() + pad, 0);
        pdu.extend_from_slice(&[self.auth_type, self.level, pad as u8, 0]);
        pdu.put_u32(self.context);
        let at = pdu.len();
        pdu.resize(at + token_bytes, 0);
        let length = pdu.len() as u16;
        pdu.patch_u16(8, length);
        pdu.patch_u16(10, token_bytes as u16);
        at
    }

    /// Appends padding to four bytes, the trailer and a token.
    pub fn append_token(&self, pdu: &mut Vec<u8>, token: &[u8]) {
        let at = self.append(pdu, 0, 4, token.len());
        pdu[at..].copy_from_slice(token);
    }
}

/// Adds flags to those of a PDU.
pub fn add_flags(pdu: &mut [u8], flags: u8) {
    if let Some(place) = pdu.get_mut(3) {
        *place |= flags;
    }
}

/// Encodes rpc_auth_3, [MS-RPCE] 2.2.2.5, without its trailer.
pub fn encode_auth3(call_id: u32) -> Vec<u8> {
    let mut out = start(AUTH3, PFC_FIRST_FRAG | PFC_LAST_FRAG, call_id);
    out.put_u32(0);
    finish(out)
}

/// Encodes co_cancel, [C706] 12.6.4.6, as a client sends it.
pub fn encode_cancel(call_id: u32) -> Vec<u8> {
    finish(start(CO_CANCEL, PFC_FIRST_FRAG | PFC_LAST_FRAG, call_id))
}

/// A presentation context that a client proposes: p_cont_elem_t, [C706] 12.6.3.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextElement {
    pub id: u16,
    pub interface: Syntax,
    pub transfer: Vec<Syntax>,
}

/// bind and alter_context, [C706] 12.6.4.3 and 12.6.4.1. Fragment sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    pub max_xmit: u16,
    pub max_recv: u16,
    pub group: u32,
    pub contexts: Vec<ContextElement>,
}

impl Bind {
    /// Decodes the bytes behind the common header.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(body: &[u8]) -> Result<Bind, Malformed> {
        let mut r = Reader::new(body);
        let (max_xmit, max_recv, group) = (r.u16()?, r.u16()?, r.u32()?);
        let count = usize::from(r.u8()?);
        r.skip(3)?;
        if count > CONTEXTS_MAX {
            return Err(Malformed("too many presentation contexts"));
        }
        let mut contexts = Vec::with_capacity(count);
        for _ in 0..count {
            let id = r.u16()?;
            let transfers = usize::from(r.u8()?);
            r.skip(1)?;
            let interface = Syntax::read(&mut r)?;
            if transfers > CONTEXTS_MAX {
                return Err(Malformed("too many transfer syntaxes"));
            }
            let transfer = (0..transfers).map(|_| Syntax::read(&mut r)).collect::<Result<_, _>>()?;
            contexts.push(ContextElement { id, interface, transfer });
        }
        Ok(Bind { max_xmit, max_recv, group, contexts })
    }

    /// Encodes the PDU as a client sends it; `kind` is [`BIND`] or [`ALTER_CONTEXT`].
    pub fn encode(&self, kind: u8, call_id: u32) -> Vec<u8> {
        let mut out = start(kind, PFC_FIRST_FRAG | PFC_LAST_FRAG, call_id);
        out.put_u16(self.max_xmit);
        out.put_u16(self.max_recv);
        out.put_u32(self.group);
        out.put_u32(self.contexts.len() as u32);
        for context in &self.contexts {
            out.put_u16(context.id);
            out.put_u16(context.transfer.len() as u16);
            context.interface.put(&mut out);
            context.transfer.iter().for_each(|t| t.put(&mut out));
        }
        finish(out)
    }
}

/// The result for one proposed context: p_result_t, [C706] 12.6.3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextResult {
    /// Accepted with NDR 2.0.
    Accepted,
    AbstractSyntaxNotSupported,
    TransferSyntaxesNotSupported,
    /// The features that both sides support: negotiate_ack, [MS-RPCE] 2.2.2.4.
    Features(u16),
}

/// Encodes bind_ack or alter_context_resp, [C706] 12.6.4.4 and 12.6.4.2.
pub fn encode_bind_ack(
    kind: u8,
    call_id: u32,
    max_frag: u16,
    group: u32,
    address: &str,
    results: &[ContextResult],
) -> Vec<u8> {
    let mut out = start(kind, PFC_FIRST_FRAG | PFC_LAST_FRAG, call_id);
    out.put_u16(max_frag);
    out.put_u16(max_frag);
    out.put_u32(group);
    // The secondary address is empty in an alter_context_resp, and then has no terminator.
    if address.is_empty() {
        out.put_u16(0);
    } else {
        out.put_u16(address.len() as u16 + 1);
        out.extend_from_slice(address.as_bytes());
        out.put_u8(0);
    }
    out.pad_to(0, 4);
    out.put_u32(results.len() as u32);
    for result in results {
        let (code, reason, transfer) = match result {
            ContextResult::Accepted => (0, 0, Some(NDR32)),
            ContextResult::AbstractSyntaxNotSupported => (2, 1, None),
            ContextResult::TransferSyntaxesNotSupported => (2, 2, None),
            ContextResult::Features(features) => (3, *features, None),
        };
        out.put_u16(code);
        out.put_u16(reason);
        transfer.unwrap_or(Syntax { uuid: [0; 16], version: 0 }).put(&mut out);
    }
    finish(out)
}

/// Reasons for refusing a bind: p_reject_reason_t, [C706] 12.6.3.1, and [MS-RPCE] 2.2.2.5.
pub const NAK_NOT_SPECIFIED: u16 = 0;
pub const NAK_LOCAL_LIMIT: u16 = 2;
pub const NAK_AUTH_TYPE_NOT_RECOGNIZED: u16 = 8;

/// Encodes bind_nak, [C706] 12.6.4.5 and [MS-RPCE] 2.2.2.9.
pub fn encode_bind_nak(call_id: u32, reason: u16) -> Vec<u8> {
    let mut out = start(BIND_NAK, PFC_FIRST_FRAG | PFC_LAST_FRAG, call_id);
    out.put_u16(reason);
    // One supported version: 5.0.
    out.extend_from_slice(&[1, 5, 0]);
    finish(out)
}

/// A fragment of a request, [C706] 12.6.4.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub context: u16,
    pub opnum: u16,
    pub stub: &'a [u8],
}

impl<'a> Request<'a> {
    /// Decodes the bytes behind the common header.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut r = Reader::new(body);
        r.skip(4)?;
        let (context, opnum) = (r.u16()?, r.u16()?);
        if header.flags & PFC_OBJECT_UUID != 0 {
            r.skip(16)?;
        }
        Ok(Request { context, opnum, stub: r.rest() })
    }

    /// Encodes the PDU as a client sends it.
    pub fn encode(&self, flags: u8, call_id: u32) -> Vec<u8> {
        let mut out = start(REQUEST, flags, call_id);
        out.put_u32(self.stub.len() as u32);
        out.put_u16(self.context);
        out.put_u16(self.opnum);
        out.extend_from_slice(self.stub);
        finish(out)
    }
}

/// Encodes a response, [C706] 12.6.4.10, in fragments of at most `max_frag` bytes.
pub fn encode_response(call_id: u32, context: u16, stub: &[u8], max_frag: usize) -> Vec<Vec<u8>> {
    // Stubs of multiples of 8 bytes keep the alignment the same in each fragment.
    encode_response_parts(call_id, context, stub, max_frag.saturating_sub(RESPONSE_HEADER_BYTES) & !7)
}

/// Encodes a response in fragments with at most `room` bytes of its stub each.
pub fn encode_response_parts(call_id: u32, context: u16, stub: &[u8], room: usize) -> Vec<Vec<u8>> {
    let room = room.max(16);
    let count = stub.len().div_ceil(room).max(1);
    (0..count)
        .map(|i| {
            let part = &stub[i * room..stub.len().min((i + 1) * room)];
            let first = if i == 0 { PFC_FIRST_FRAG } else { 0 };
            let last = if i + 1 == count { PFC_LAST_FRAG } else { 0 };
            let mut out = start(RESPONSE, first | last, call_id);
            out.put_u32((stub.len() - i * room) as u32);
            out.put_u16(context);
            out.put_u16(0);
            out.extend_from_slice(part);
            finish(out)
        })
        .collect()
}

/// Encodes a fault, [C706] 12.6.4.7. Without `executed`, PFC_DID_NOT_EXECUTE tells the client that it may call again.
pub fn encode_fault(call_id: u32, context: u16, status: u32, executed: bool) -> Vec<u8> {
    let did_not = if executed { 0 } else { PFC_DID_NOT_EXECUTE };
    let mut out = start(FAULT, PFC_FIRST_FRAG | PFC_LAST_FRAG | did_not, call_id);
    out.put_u32(0);
    out.put_u16(context);
    out.put_u16(0);
    out.put_u32(status);
    out.put_u32(0);
    finish(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_round_trip() {
        let bind = Bind {
            max_xmit: 4280,
            max_recv: 4280,
            group: 5,
            contexts: vec![
                ContextElement { id: 0, interface: NDR64, transfer: vec![NDR32, NDR64] },
                ContextElement { id: 1, interface: NDR64, transfer: vec![] },
            ],
        };
        let bytes = bind.encode(BIND, 7);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((usize::from(header.frag_length), header.kind, header.call_id), (bytes.len(), BIND, 7));
        assert_eq!(Bind::parse(&bytes[16..]), Ok(bind));
        for end in 16..bytes.len() {
            assert!(Bind::parse(&bytes[16..end]).is_err());
        }
    }

    #[test]
    fn responses_are_fragmented_and_rebuild() {
        let stub: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let fragments = encode_response(3, 1, &stub, 4280);
        assert!(fragments.iter().all(|f| f.len() <= 4280));
        let mut rebuilt = Vec::new();
        for (i, f) in fragments.iter().enumerate() {
            let header = Header::parse(f).unwrap();
            assert_eq!((header.is_first(), header.is_last()), (i == 0, i + 1 == fragments.len()));
            rebuilt.extend_from_slice(&f[RESPONSE_HEADER_BYTES..]);
        }
        assert_eq!(rebuilt, stub);
        assert_eq!(encode_response(3, 1, &[], 4280).len(), 1);
    }

    #[test]
    fn trailers_round_trip() {
        let request = Request { context: 1, opnum: 3, stub: &[7; 20] }.encode(3, 9);
        let trailer = Trailer { auth_type: auth_type::NTLM, level: auth_level::PRIVACY, pad: 0, context: 5 };
        let mut pdu = request.clone();
        let token = trailer.append(&mut pdu, RESPONSE_HEADER_BYTES, 16, 16);
        pdu[token..].fill(8);
        let header = Header::parse(&pdu).unwrap();
        assert_eq!((usize::from(header.frag_length), header.auth_length), (pdu.len(), 16));
        let (read, end, at) = Trailer::split(&header, &pdu).unwrap();
        assert_eq!((read, end, at), (Trailer { pad: 12, ..trailer }, request.len(), token - TRAILER_BYTES));
        assert_eq!(pdu[at + TRAILER_BYTES..], [8; 16]);
        for auth_length in [17, 60, 1000, u16::MAX] {
            let header = Header { auth_length, ..header };
            let split = Trailer::split(&header, &pdu);
            assert!(split.is_err() || split.is_ok_and(|(_, end, at)| end <= at && at < token));
        }
        pdu[at + 2] = 255;
        assert!(Trailer::split(&header, &pdu).is_err(), "padding before the header");
    }

    #[test]
    fn features_of_bind_time_negotiation() {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&BIND_TIME_FEATURES);
        uuid[8] = 3;
        assert_eq!(Syntax { uuid, version: 1 }.features(), Some(3));
        assert_eq!(NDR32.features(), None);
    }
}
