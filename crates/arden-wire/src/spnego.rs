//! SPNEGO tokens, RFC 4178 and [MS-SPNG] 2.2: NegTokenInit, NegTokenInit2, NegTokenResp. Choosing a mechanism and
//! checking a mechListMIC belong to arden-auth.

use crate::{Malformed, der};

/// Object identifiers of mechanisms, as the contents of their DER element, [MS-SPNG] 1.9.1.
pub mod oid {
    pub const SPNEGO: &[u8] = &[0x2B, 6, 1, 5, 5, 2];
    pub const NTLMSSP: &[u8] = &[0x2B, 6, 1, 4, 1, 0x82, 0x37, 2, 2, 10];
    pub const KRB5: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x12, 1, 2, 2];
    /// Kerberos with the wrong object identifier that Windows still sends, [MS-SPNG] 3.1.5.2.
    pub const MS_KRB5: &[u8] = &[0x2A, 0x86, 0x48, 0x82, 0xF7, 0x12, 1, 2, 2];
    pub const NEGOEX: &[u8] = &[0x2B, 6, 1, 4, 1, 0x82, 0x37, 2, 2, 30];
}

/// Mechanisms in one MechTypeList; a longer list is malformed.
const MECHANISMS_MAX: usize = 32;
const HINT_NAME: &[u8] = b"not_defined_in_RFC4178@please_ignore";

/// The first token of an initiator, RFC 4178 4.2.1.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NegTokenInit {
    pub mech_types: Vec<Vec<u8>>,
    /// The MechTypeList as received, in DER: the bytes that a mechListMIC covers.
    pub mech_types_der: Vec<u8>,
    /// The optimistic token, for the first mechanism of the list.
    pub mech_token: Option<Vec<u8>>,
    pub mech_list_mic: Option<Vec<u8>>,
}

/// negState, RFC 4178 4.2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NegState {
    AcceptCompleted = 0,
    AcceptIncomplete = 1,
    Reject = 2,
    RequestMic = 3,
}

/// A token after the first one, from either side, RFC 4178 4.2.2.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NegTokenResp {
    pub neg_state: Option<NegState>,
    pub supported_mech: Option<Vec<u8>>,
    pub response_token: Option<Vec<u8>>,
    pub mech_list_mic: Option<Vec<u8>>,
}

/// A NegotiationToken, RFC 4178 4.2: the first token or a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NegToken {
    Init(NegTokenInit),
    Resp(NegTokenResp),
}

impl NegToken {
    /// Decodes a token with or without the GSS-API framing of RFC 2743 3.1.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<NegToken, Malformed> {
        let mut top = der::Elements::new(bytes);
        let mut token = top.next()?.ok_or(Malformed("empty SPNEGO token"))?;
        if token.tag == der::APPLICATION_0 {
            let mut inner = der::Elements::new(token.contents);
            if inner.expect(der::OID)?.contents != oid::SPNEGO {
                return Err(Malformed("not SPNEGO"));
            }
            token = inner.next()?.ok_or(Malformed("SPNEGO token missing"))?;
        }
        const INIT: u8 = der::context(0);
        const RESP: u8 = der::context(1);
        match token.tag {
            INIT => NegTokenInit::parse(der::only(token.contents, der::SEQUENCE)?).map(NegToken::Init),
            RESP => NegTokenResp::parse(der::only(token.contents, der::SEQUENCE)?).map(NegToken::Resp),
            _ => Err(Malformed("unknown SPNEGO token")),
        }
    }
}

impl NegTokenInit {
    fn parse(body: &[u8]) -> Result<NegTokenInit, Malformed> {
        let mut out = NegTokenInit::default();
        let mut fields = der::Elements::new(body);
        while let Some(field) = fields.next()? {
            match field.tag & 0x1F {
                0 => {
                    let list = der::Elements::new(field.contents).expect(der::SEQUENCE)?;
                    out.mech_types_der = list.whole.to_vec();
                    let mut mechanisms = der::Elements::new(list.contents);
                    while let Some(mechanism) = mechanisms.next()? {
                        if mechanism.tag != der::OID || out.mech_types.len() == MECHANISMS_MAX {
                            return Err(Malformed("mechTypes"));
                        }
                        out.mech_types.push(mechanism.contents.to_vec());
                    }
                }
                1 => {}
                2 => out.mech_token = Some(der::only(field.contents, der::OCTET_STRING)?.to_vec()),
                // In NegTokenInit field [3] is the MIC; in NegTokenInit2 it is the hints, and the MIC is field [4].
                3 | 4 => match der::Elements::new(field.contents).next()? {
                    Some(e) if e.tag == der::OCTET_STRING => out.mech_list_mic = Some(e.contents.to_vec()),
                    Some(e) if e.tag == der::SEQUENCE => {}
                    _ => return Err(Malformed("mechListMIC")),
                },
                _ => return Err(Malformed("NegTokenInit field")),
            }
        }
        Ok(out)
    }

    /// Encodes the first token of an initiator that offers these mechanisms, with an optimistic token or without.
    pub fn encode(mechanisms: &[&[u8]], token: Option<&[u8]>) -> Vec<u8> {
        let mut body = der::element(der::context(0), &mech_type_list(mechanisms));
        if let Some(token) = token {
            body.extend(der::element(der::context(2), &der::element(der::OCTET_STRING, token)));
        }
        framed(&body)
    }

    /// Encodes the NegTokenInit2 of the acceptor that a NEGOTIATE response carries, [MS-SPNG] 2.2.1.
    pub fn encode_hint(mechanisms: &[&[u8]]) -> Vec<u8> {
        let mut body = der::element(der::context(0), &mech_type_list(mechanisms));
        let name = der::element(der::context(0), &der::element(der::GENERAL_STRING, HINT_NAME));
        body.extend(der::element(der::context(3), &der::element(der::SEQUENCE, &name)));
        framed(&body)
    }
}

/// Encodes a MechTypeList, RFC 4178 4.1.
pub fn mech_type_list(mechanisms: &[&[u8]]) -> Vec<u8> {
    let list: Vec<u8> = mechanisms.iter().flat_map(|m| der::element(der::OID, m)).collect();
    der::element(der::SEQUENCE, &list)
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut inner = der::element(der::OID, oid::SPNEGO);
    inner.extend(der::element(der::context(0), &der::element(der::SEQUENCE, body)));
    der::element(der::APPLICATION_0, &inner)
}

impl NegTokenResp {
    fn parse(body: &[u8]) -> Result<NegTokenResp, Malformed> {
        let mut out = NegTokenResp::default();
        let mut fields = der::Elements::new(body);
        while let Some(field) = fields.next()? {
            match field.tag & 0x1F {
                0 => {
                    out.neg_state = Some(match der::only(field.contents, der::ENUMERATED)? {
                        [0] => NegState::AcceptCompleted,
                        [1] => NegState::AcceptIncomplete,
                        [2] => NegState::Reject,
                        [3] => NegState::RequestMic,
                        _ => return Err(Malformed("negState")),
                    });
                }
                1 => out.supported_mech = Some(der::only(field.contents, der::OID)?.to_vec()),
                2 => out.response_token = Some(der::only(field.contents, der::OCTET_STRING)?.to_vec()),
                3 => out.mech_list_mic = Some(der::only(field.contents, der::OCTET_STRING)?.to_vec()),
                _ => return Err(Malformed("NegTokenResp field")),
            }
        }
        Ok(out)
    }

    /// Encodes the token in DER, RFC 4178 4.2.2.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(state) = self.neg_state {
            body.extend(der::element(der::context(0), &der::element(der::ENUMERATED, &[state as u8])));
        }
        if let Some(mechanism) = &self.supported_mech {
            body.extend(der::element(der::context(1), &der::element(der::OID, mechanism)));
        }
        if let Some(token) = &self.response_token {
            body.extend(der::element(der::context(2), &der::element(der::OCTET_STRING, token)));
        }
        if let Some(mic) = &self.mech_list_mic {
            body.extend(der::element(der::context(3), &der::element(der::OCTET_STRING, mic)));
        }
        der::element(der::context(1), &der::element(der::SEQUENCE, &body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_round_trip() {
        for token in [None, Some(&b"token"[..]), Some(&[7; 300][..])] {
            let bytes = NegTokenInit::encode(&[oid::KRB5, oid::NTLMSSP], token);
            let Ok(NegToken::Init(init)) = NegToken::parse(&bytes) else { panic!() };
            assert_eq!(init.mech_types, [oid::KRB5, oid::NTLMSSP]);
            assert_eq!(init.mech_token.as_deref(), token);
            assert_eq!(init.mech_types_der, mech_type_list(&[oid::KRB5, oid::NTLMSSP]));
            assert_eq!(init.mech_list_mic, None);
        }
    }

    #[test]
    fn hint_is_what_the_specification_shows() {
        let bytes = NegTokenInit::encode_hint(&[oid::NEGOEX, oid::NTLMSSP]);
        // The example of [MS-SPNG] 4, without its mechToken.
        let mechanisms = [
            0xA0, 0x1A, 0x30, 0x18, 6, 10, 0x2B, 6, 1, 4, 1, 0x82, 0x37, 2, 2, 0x1E, 6, 10, 0x2B, 6, 1, 4, 1, 0x82,
            0x37, 2, 2, 10,
        ];
        let hints = [0xA3, 0x2A, 0x30, 0x28, 0xA0, 0x26, 0x1B, 0x24];
        let body = [&mechanisms[..], &hints, HINT_NAME].concat();
        let head = [0x60, 0x54, 6, 6, 0x2B, 6, 1, 5, 5, 2, 0xA0, 0x4A, 0x30, 0x48];
        assert_eq!(bytes, [&head[..], &body].concat());
        assert!(matches!(NegToken::parse(&bytes), Ok(NegToken::Init(i)) if i.mech_list_mic.is_none()));
    }

    #[test]
    fn resp_round_trip() {
        let full = NegTokenResp {
            neg_state: Some(NegState::RequestMic),
            supported_mech: Some(oid::NTLMSSP.to_vec()),
            response_token: Some(vec![9; 200]),
            mech_list_mic: Some(vec![1; 16]),
        };
        for resp in [full, NegTokenResp::default()] {
            assert_eq!(NegToken::parse(&resp.encode()), Ok(NegToken::Resp(resp)));
        }
    }

    #[test]
    fn hostile_lengths() {
        for bytes in [
            &[][..],
            &[0x60],
            &[0x60, 0x80, 0, 0],
            &[0x60, 0x84, 0xFF, 0xFF, 0xFF, 0xFF],
            &[0x60, 0x85, 0, 0, 0, 0, 0],
            &[0xA1, 3, 0x30, 5, 0],
            &[0xA1, 2, 0x30],
            &[0x1F, 0x80, 0],
        ] {
            assert!(NegToken::parse(bytes).is_err(), "{bytes:x?}");
        }
    }
}
