//! Codecs of arden-wire.

use arden_wire::{
    dtyp::{SecurityDescriptor, Sid},
    ntlm::{Authenticate, AvPair, Challenge, ClientChallenge, Negotiate},
    spnego::{NegToken, NegTokenResp},
};

/// Descriptors and SIDs, binary and as text.
pub fn dtyp(data: &[u8]) {
    if let Ok(sd) = SecurityDescriptor::parse(data) {
        let bytes = sd.encode();
        assert_eq!(SecurityDescriptor::parse(&bytes).as_ref(), Ok(&sd));
        let _ = sd.to_sddl();
        for information in [0x1, 0x2, 0x4, 0x8, 0x10, 0x1_0000, 0xF] {
            let part = sd.encode_selected(information);
            assert!(SecurityDescriptor::parse(&part).is_ok());
        }
    }
    if let Ok(sid) = Sid::parse(data) {
        assert_eq!(Sid::parse(&sid.encode()).as_ref(), Ok(&sid));
        assert_eq!(sid.to_string().parse().as_ref(), Ok(&sid));
    }
    let text = std::str::from_utf8(data).unwrap_or_default();
    if let Ok(sid) = text.parse::<Sid>() {
        assert_eq!(sid.to_string().parse(), Ok(sid));
    }
}

/// SPNEGO tokens.
pub fn spnego(data: &[u8]) {
    if let Ok(NegToken::Resp(resp)) = NegToken::parse(data) {
        let again: NegTokenResp = match NegToken::parse(&resp.encode()) {
            Ok(NegToken::Resp(again)) => again,
            other => panic!("{other:?}"),
        };
        assert_eq!(again, resp);
    }
}

/// NTLM messages.
pub fn ntlm(data: &[u8]) {
    let _ = Negotiate::parse(data);
    if let Ok(challenge) = Challenge::parse(data) {
        let _ = AvPair::parse_list(&challenge.target_info);
        let _ = challenge.encode();
    }
    if let Ok(message) = Authenticate::parse(data) {
        let _ = format!("{message:?}");
        if let Some(blob) = message.nt_response.get(16..) {
            let _ = ClientChallenge::parse(blob).map(|c| c.has_mic());
        }
    }
    if let Ok(challenge) = ClientChallenge::parse(data) {
        assert_eq!(ClientChallenge::parse(&challenge.encode()), Ok(challenge));
    }
}
