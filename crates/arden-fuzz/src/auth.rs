//! Authentication and access.

use arden_auth::{
    Acceptor, AuthPolicy, MemoryUsers, ServerIdentity, Step, Token, access_check, change_descriptor, maximum_access,
    new_descriptor,
};
use arden_wire::{
    FileTime,
    access::{FILE_ALL_ACCESS, MAXIMUM_ALLOWED},
    dtyp::{SecurityDescriptor, Sid, well_known},
};
use std::sync::Arc;

/// Cuts the input into messages: each begins with its length in two bytes.
pub(crate) fn messages(mut data: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while let [a, b, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*a, *b])).min(rest.len());
        let (message, after) = rest.split_at(length);
        out.push(message);
        data = after;
    }
    out
}

/// Tokens of a client that does not know the password.
pub fn acceptor(data: &[u8]) {
    let users = MemoryUsers::new("FUZZ", Sid::new(5, &[21, 1, 2, 3]));
    users.add_user("user", "a password that no fuzzer finds", &[]);
    let identity = Arc::new(ServerIdentity::stand_alone("fuzz.example.org"));
    let mut acceptor = Acceptor::new(Arc::new(users), identity, AuthPolicy::default());
    for message in messages(data).into_iter().take(6) {
        let step = acceptor.step(message, FileTime(133_000_000_000_000_000), [7; 8]);
        assert!(!matches!(step, Ok(Step::Done { .. })), "logged on without the password");
    }
}

/// Two descriptors, a parent's and an explicit one: checks, inheritance, changes.
pub fn access(data: &[u8]) {
    let who = Token {
        user: Sid::new(5, &[21, 1, 2, 3, 1000]),
        user_name: "user".to_string(),
        groups: vec![well_known::EVERYONE.clone(), Sid::new(5, &[21, 1, 2, 3, 513])],
        privileges: 0,
    };
    let parsed: Vec<SecurityDescriptor> =
        messages(data).into_iter().take(2).filter_map(|m| SecurityDescriptor::parse(m).ok()).collect();
    let Some(first) = parsed.first() else { return };
    let maximum = maximum_access(first, &who);
    for bit in (0..21).map(|b| 1u32 << b).filter(|b| b & FILE_ALL_ACCESS != 0) {
        assert_eq!(access_check(first, &who, bit).is_ok(), maximum & bit != 0);
    }
    assert_eq!(access_check(first, &who, MAXIMUM_ALLOWED).unwrap_or(0), maximum);
    for directory in [false, true] {
        let child = new_descriptor(Some(first), parsed.get(1), directory, &who);
        assert!(SecurityDescriptor::parse(&child.encode()).is_ok());
    }
    if let Some(second) = parsed.get(1) {
        let _ = change_descriptor(first, second, 0xFF, &who).map(|sd| sd.encode());
        let _ = change_descriptor(first, second, 4, &who).map(|sd| sd.encode());
    }
}
