//! The acceptor against the client side, against the example of the specification, and against attackers.

use super::Rng;
use crate::{crypto::HMACS, initiator::*, *};
use arden_wire::{
    FileTime, NtStatus,
    dtyp::{Sid, well_known},
    ntlm::{self, flags},
    spnego::{NegState, NegToken, NegTokenInit, NegTokenResp, oid},
};
use std::sync::Arc;

const NOW: FileTime = FileTime(133_000_000_000_000_000);
const SERVER_RANDOM: [u8; 8] = [1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
const CLIENT_RANDOM: [u8; 24] = [0x55; 24];

fn users() -> Arc<MemoryUsers> {
    let users = MemoryUsers::new("ARDEN", "S-1-5-21-1-2-3".parse().unwrap());
    users.add_user("Alice", "pässword", &[]);
    users.add_user("Root", "secret", std::slice::from_ref(&well_known::BUILTIN_ADMINISTRATORS));
    users.add_user("empty", "", &[]);
    users.add_user("gone", "x", &[]);
    users.put_user(UserRecord { disabled: true, ..users.user("gone").unwrap() });
    Arc::new(users)
}

fn acceptor_with(policy: AuthPolicy) -> Acceptor {
    Acceptor::new(users(), Arc::new(ServerIdentity::stand_alone("arden.example.org")), policy)
}

fn acceptor() -> Acceptor {
    acceptor_with(AuthPolicy::default())
}

/// Runs both sides to the end; the session keys have to be equal.
fn run(client: &mut Initiator, server: &mut Acceptor) -> Result<Logon, NtStatus> {
    let mut token = client.first();
    for _ in 0..4 {
        match server.step(&token, NOW, SERVER_RANDOM)? {
            Step::Continue(reply) => token = client.second(&reply, CLIENT_RANDOM)?,
            Step::Done { reply, logon } => {
                assert_eq!(client.verify(&reply)?, logon.session_key);
                return Ok(logon);
            }
        }
    }
    panic!("no end")
}

fn login(user: &str, domain: &str, password: &str) -> Result<Logon, NtStatus> {
    run(&mut Initiator::new(user, domain, password), &mut acceptor())
}

#[test]
fn logs_on_with_and_without_spnego() {
    for spnego in [true, false] {
        let mut client = Initiator::new("aLiCe", "WHATEVER", "pässword");
        client.spnego = spnego;
        let logon = run(&mut client, &mut acceptor()).unwrap();
        assert_eq!(logon.token.user, "S-1-5-21-1-2-3-1000".parse::<Sid>().unwrap());
        assert_eq!((logon.token.user_name.as_str(), logon.workstation.as_str()), ("Alice", "CLIENT"));
        assert_eq!(logon.session_key, [0x55; 16]);
        assert_eq!((logon.anonymous, logon.guest, logon.token.privileges), (false, false, 0));
        assert_eq!(logon.token.primary_group(), &"S-1-5-21-1-2-3-513".parse::<Sid>().unwrap());
        assert!(logon.token.has_sid(&well_known::AUTHENTICATED_USERS) && !logon.token.is_administrator());
    }
}

#[test]
fn names_of_all_forms() {
    for (user, domain) in [("alice", ""), ("ALICE", "ARDEN"), ("alice@example.org", ""), ("alice", "example.org")] {
        assert!(login(user, domain, "pässword").is_ok(), "{user} {domain}");
    }
    let root = login("root", "", "secret").unwrap();
    assert!(root.token.is_administrator());
    assert_eq!(root.token.privileges, privilege::ADMINISTRATOR);
}

#[test]
fn refusals() {
    assert_eq!(login("alice", "", "wrong").unwrap_err(), NtStatus::LOGON_FAILURE);
    assert_eq!(login("nobody", "", "wrong").unwrap_err(), NtStatus::LOGON_FAILURE);
    assert_eq!(login("nobody", "", "").unwrap_err(), NtStatus::LOGON_FAILURE);
    assert_eq!(login("gone", "", "x").unwrap_err(), NtStatus::ACCOUNT_DISABLED);
    assert_eq!(login("gone", "", "y").unwrap_err(), NtStatus::LOGON_FAILURE);
    assert_eq!(login("empty", "", "").unwrap_err(), NtStatus::ACCOUNT_RESTRICTION);
    let mut server = acceptor_with(AuthPolicy { allow_empty_passwords: true, ..Default::default() });
    assert!(run(&mut Initiator::new("empty", "", ""), &mut server).is_ok());
}

/// The time of a refusal does not tell whether there is an account of the name.
#[test]
fn an_unknown_user_costs_what_a_wrong_password_costs() {
    let cost = |user: &str, domain: &str, password: &str| {
        let mut client = Initiator::new(user, domain, password);
        let mut server = acceptor();
        let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
        let token = client.second(&reply, CLIENT_RANDOM).unwrap();
        let before = HMACS.get();
        assert_eq!(server.step(&token, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(server.take_verdict(), Some(false));
        HMACS.get() - before
    };
    for domain in ["ARDEN", ""] {
        let wrong = cost("alice", domain, "wrong");
        assert!(wrong > 0);
        for (user, password) in [("alice", ""), ("nobody", ""), ("nobody", "wrong"), ("empty", "wrong")] {
            assert_eq!(cost(user, domain, password), wrong, "{user} {domain} {password}");
        }
    }
    // The empty password of an account that has it is judged as before.
    assert_eq!(login("empty", "ARDEN", "").unwrap_err(), NtStatus::ACCOUNT_RESTRICTION);
    let mut server = acceptor_with(AuthPolicy { allow_empty_passwords: true, ..Default::default() });
    assert!(run(&mut Initiator::new("empty", "ARDEN", ""), &mut server).is_ok());
}

#[test]
fn weaker_clients_agree_on_keys_too() {
    for without in [
        flags::KEY_EXCH,
        flags::NEGOTIATE_128,
        flags::NEGOTIATE_128 | flags::NEGOTIATE_56,
        flags::VERSION,
        flags::SEAL,
        flags::REQUEST_TARGET,
    ] {
        let mut client = Initiator::new("alice", "", "pässword");
        client.flags &= !without;
        run(&mut client, &mut acceptor()).unwrap_or_else(|e| panic!("{without:#x}: {e:?}"));
    }
}

#[test]
fn a_client_that_prefers_kerberos_falls_back_under_a_mic() {
    let mut client = Initiator::new("alice", "", "pässword");
    client.mechanisms = vec![oid::MS_KRB5.to_vec(), oid::KRB5.to_vec(), oid::NTLMSSP.to_vec()];
    let mut server = acceptor();
    assert!(run(&mut client, &mut server).is_ok());

    // The same without the client's MIC: the server sends its MIC first, and the client's has to follow.
    let mut client = Initiator::new("alice", "", "pässword");
    client.mechanisms = vec![oid::KRB5.to_vec(), oid::NTLMSSP.to_vec()];
    let mut server = acceptor();
    let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
    let Ok(NegToken::Resp(resp)) = NegToken::parse(&reply) else { panic!() };
    assert_eq!((resp.neg_state, resp.supported_mech), (Some(NegState::RequestMic), Some(oid::NTLMSSP.to_vec())));
    let token = client.second(&reply, CLIENT_RANDOM).unwrap();
    let Ok(Step::Continue(reply)) = server.step(&token, NOW, SERVER_RANDOM) else { panic!() };
    let Ok(NegToken::Resp(mut resp)) = NegToken::parse(&client.second(&reply, CLIENT_RANDOM).unwrap()) else {
        panic!()
    };
    let mic = resp.mech_list_mic.take();
    let Ok(Step::Continue(reply)) = server.step(&resp.encode(), NOW, SERVER_RANDOM) else { panic!() };
    assert!(matches!(NegToken::parse(&reply), Ok(NegToken::Resp(r)) if r.mech_list_mic.is_some()));
    let last = NegTokenResp { mech_list_mic: mic, ..Default::default() };
    assert!(matches!(server.step(&last.encode(), NOW, SERVER_RANDOM), Ok(Step::Done { .. })));
}

#[test]
fn a_changed_mechanism_list_is_noticed() {
    // An attacker removes Kerberos from the list in transit.
    let mut client = Initiator::new("alice", "", "pässword");
    client.mechanisms = vec![oid::NTLMSSP.to_vec(), oid::KRB5.to_vec()];
    let first = client.first();
    let Ok(NegToken::Init(init)) = NegToken::parse(&first) else { panic!() };
    let changed = NegTokenInit::encode(&[oid::NTLMSSP], init.mech_token.as_deref());
    let mut server = acceptor();
    let Ok(Step::Continue(reply)) = server.step(&changed, NOW, SERVER_RANDOM) else { panic!() };
    let token = client.second(&reply, CLIENT_RANDOM).unwrap();
    assert_eq!(server.step(&token, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::ACCESS_DENIED);
}

#[test]
fn a_changed_message_is_noticed_by_its_mic() {
    for flip in [ntlm::MIC_RANGE.start, 60, 64] {
        let mut client = Initiator::new("alice", "", "pässword");
        client.spnego = false;
        let mut server = acceptor();
        let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
        let mut token = client.second(&reply, CLIENT_RANDOM).unwrap();
        token[flip] ^= if flip == 60 { 0x20 } else { 1 };
        assert!(server.step(&token, NOW, SERVER_RANDOM).is_err(), "{flip}");
        // A second try is refused.
        token[flip] ^= 1;
        assert_eq!(server.step(&token, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::INVALID_PARAMETER);
    }
}

#[test]
fn a_client_without_a_clock_logs_on() {
    for server_time in [FileTime(NOW.0 + 40 * 3600 * 10_000_000), FileTime(0), FileTime(u64::MAX)] {
        let mut client = Initiator::new("alice", "", "pässword");
        let mut server = acceptor();
        let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
        let token = client.second(&reply, CLIENT_RANDOM).unwrap();
        let Ok(Step::Done { logon, .. }) = server.step(&token, server_time, SERVER_RANDOM) else { panic!() };
        assert_eq!(logon.clock_skew.as_micros() as u64, NOW.0.abs_diff(server_time.0) / 10);
    }
}

/// The server's next token, and the client's, for a client whose first choice is Kerberos and that has sent no MIC.
fn up_to_its_mic(server: &mut Acceptor, user: &str, password: &str) -> (Result<Step, NtStatus>, Vec<u8>) {
    let mut client = Initiator::new(user, "", password);
    client.mechanisms = vec![oid::KRB5.to_vec(), oid::NTLMSSP.to_vec()];
    let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
    let token = client.second(&reply, CLIENT_RANDOM).unwrap();
    let Ok(Step::Continue(reply)) = server.step(&token, NOW, SERVER_RANDOM) else { panic!() };
    let Ok(NegToken::Resp(mut resp)) = NegToken::parse(&client.second(&reply, CLIENT_RANDOM).unwrap()) else {
        panic!()
    };
    let mic = resp.mech_list_mic.take();
    let step = server.step(&resp.encode(), NOW, SERVER_RANDOM);
    (step, NegTokenResp { mech_list_mic: mic, ..Default::default() }.encode())
}

#[test]
fn every_step_that_judges_a_password_says_so_once() {
    for (password, right) in [("pässword", true), ("wrong", false)] {
        let mut server = acceptor();
        let (step, last) = up_to_its_mic(&mut server, "x\\Alice@y", password);
        assert_eq!((server.attempted_account(), step.is_ok()), ("Alice", right));
        assert_eq!((server.take_verdict(), server.take_verdict()), (Some(right), None));
        assert_eq!(server.step(&last, NOW, SERVER_RANDOM).is_ok(), right);
        assert_eq!(server.take_verdict(), None);
    }
    // A right password with a wrong MIC, and one of an account that is disabled.
    let mut client = Initiator::new("alice", "", "pässword");
    client.spnego = false;
    let mut server = acceptor();
    let Ok(Step::Continue(reply)) = server.step(&client.first(), NOW, SERVER_RANDOM) else { panic!() };
    let mut token = client.second(&reply, CLIENT_RANDOM).unwrap();
    token[ntlm::MIC_RANGE.start] ^= 1;
    assert_eq!(server.step(&token, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::INVALID_PARAMETER);
    assert_eq!(server.take_verdict(), Some(true));
    let mut server = acceptor();
    assert_eq!(run(&mut Initiator::new("gone", "", "x"), &mut server).unwrap_err(), NtStatus::ACCOUNT_DISABLED);
    assert_eq!(server.take_verdict(), Some(true));
}

#[test]
fn an_account_that_changes_between_password_and_mic_is_looked_at_again() {
    let begin = || {
        let users = users();
        let identity = Arc::new(ServerIdentity::stand_alone("arden.example.org"));
        let mut server = Acceptor::new(users.clone(), identity, AuthPolicy::default());
        let (step, last) = up_to_its_mic(&mut server, "root", "secret");
        assert!(matches!(step, Ok(Step::Continue(_))));
        (users, server, last)
    };
    let (users, mut server, last) = begin();
    users.remove_user("root");
    assert_eq!(server.step(&last, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::LOGON_FAILURE);
    let (users, mut server, last) = begin();
    users.add_user("root", "another", &[]);
    assert_eq!(server.step(&last, NOW, SERVER_RANDOM).unwrap_err(), NtStatus::LOGON_FAILURE);
    let (users, mut server, last) = begin();
    users.add_user("root", "secret", &[]);
    let Ok(Step::Done { logon, .. }) = server.step(&last, NOW, SERVER_RANDOM) else { panic!() };
    assert!(!logon.token.is_administrator());
}

fn anonymous_message() -> Vec<u8> {
    ntlm::Authenticate { flags: CLIENT_FLAGS & !flags::KEY_EXCH, lm_response: vec![0], ..Default::default() }.encode()
}

#[test]
fn anonymous_is_refused_unless_allowed() {
    for allow_anonymous in [false, true] {
        let mut client = Initiator::new("", "", "");
        client.spnego = false;
        let mut server = acceptor_with(AuthPolicy { allow_anonymous, ..Default::default() });
        server.step(&client.first(), NOW, SERVER_RANDOM).unwrap();
        match server.step(&anonymous_message(), NOW, SERVER_RANDOM) {
            Ok(Step::Done { logon, .. }) if allow_anonymous => {
                assert!(logon.anonymous && logon.token.is_anonymous());
                assert!(!logon.token.has_sid(&well_known::EVERYONE));
            }
            Err(NtStatus::ACCESS_DENIED) if !allow_anonymous => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ntlm_v1_is_refused() {
    let mut client = Initiator::new("alice", "", "pässword");
    client.spnego = false;
    let mut server = acceptor();
    server.step(&client.first(), NOW, SERVER_RANDOM).unwrap();
    let message = ntlm::Authenticate {
        flags: CLIENT_FLAGS & !flags::KEY_EXCH,
        lm_response: vec![3; 24],
        nt_response: vec![4; 24],
        user: "alice".into(),
        ..Default::default()
    };
    assert_eq!(server.step(&message.encode(), NOW, SERVER_RANDOM).unwrap_err(), NtStatus::LOGON_FAILURE);
    assert_eq!(server.attempted_user(), Some("alice"));
}

#[test]
fn a_response_whose_av_pairs_run_out_of_the_message_is_a_bad_parameter() {
    let mut client = Initiator::new("alice", "", "pässword");
    client.spnego = false;
    let mut server = acceptor();
    server.step(&client.first(), NOW, SERVER_RANDOM).unwrap();
    let mut nt_response = vec![0xAB; 16];
    nt_response.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    nt_response.extend([0x3F; 71]);
    let message = ntlm::Authenticate {
        flags: CLIENT_FLAGS & !flags::KEY_EXCH,
        nt_response,
        user: "alice".into(),
        ..Default::default()
    };
    assert_eq!(server.step(&message.encode(), NOW, SERVER_RANDOM).unwrap_err(), NtStatus::INVALID_PARAMETER);
}

/// Names and responses that are too long are refused before anything is done with them: no password is judged, and no
/// name is kept for the throttle and the log.
#[test]
fn fields_that_are_too_long_are_a_bad_parameter() {
    let try_lengths = |user: usize, domain: usize, workstation: usize, nt_response: usize| {
        let mut client = Initiator::new("alice", "", "pässword");
        client.spnego = false;
        let mut server = acceptor();
        server.step(&client.first(), NOW, SERVER_RANDOM).unwrap();
        let message = ntlm::Authenticate {
            flags: CLIENT_FLAGS & !flags::KEY_EXCH,
            nt_response: [&[0xAB; 16][..], &[1, 1], &vec![0; nt_response - 18]].concat(),
            domain: "d".repeat(domain),
            user: "ü".repeat(user),
            workstation: "w".repeat(workstation),
            ..Default::default()
        };
        let status = server.step(&message.encode(), NOW, SERVER_RANDOM).unwrap_err();
        let judged = server.take_verdict().is_some();
        assert_eq!(server.attempted_user().is_some(), judged);
        (status, judged)
    };
    assert_eq!(try_lengths(256, 256, 256, 8192), (NtStatus::LOGON_FAILURE, true));
    for (user, domain, workstation, nt_response) in
        [(257, 0, 0, 60), (1, 257, 0, 60), (1, 0, 257, 60), (1, 0, 0, 8193), (32_000, 0, 0, 60)]
    {
        let result = try_lengths(user, domain, workstation, nt_response);
        assert_eq!(result, (NtStatus::INVALID_PARAMETER, false), "{user} {domain} {workstation} {nt_response}");
    }
}

/// The AUTHENTICATE message of [MS-NLMP] 4.2.4.3, whose challenge and password are in 4.2.1.
#[test]
fn the_example_of_the_specification_logs_on() {
    let hex = |text: &str| -> Vec<u8> { text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect() };
    let message = hex("4e 54 4c 4d 53 53 50 00 03 00 00 00 18 00 18 00 6c 00 00 00 54 00 54 00 84 00 00 00 0c 00 0c 00
        48 00 00 00 08 00 08 00 54 00 00 00 10 00 10 00 5c 00 00 00 10 00 10 00 d8 00 00 00 35 82 88 e2
        05 01 28 0a 00 00 00 0f 44 00 6f 00 6d 00 61 00 69 00 6e 00 55 00 73 00 65 00 72 00 43 00 4f 00
        4d 00 50 00 55 00 54 00 45 00 52 00 86 c3 50 97 ac 9c ec 10 25 54 76 4a 57 cc cc 19 aa aa aa aa
        aa aa aa aa 68 cd 0a b8 51 e5 1c 96 aa bc 92 7b eb ef 6a 1c 01 01 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 aa aa aa aa aa aa aa aa 00 00 00 00 02 00 0c 00 44 00 6f 00 6d 00 61 00 69 00 6e 00
        01 00 0c 00 53 00 65 00 72 00 76 00 65 00 72 00 00 00 00 00 00 00 00 00 c5 da d2 54 4f c9 79 90
        94 ce 1c e9 0b c9 d0 3e");
    let users = MemoryUsers::new("Server", "S-1-5-21-1-2-3".parse().unwrap());
    users.add_user("User", "Password", &[]);
    let identity = Arc::new(ServerIdentity::stand_alone("Server"));
    let mut server = Acceptor::new(Arc::new(users), identity, AuthPolicy::default());
    let negotiate = ntlm::Negotiate { flags: 0xe288_8235 }.encode();
    server.step(&negotiate, NOW, SERVER_RANDOM).unwrap();
    let Ok(Step::Done { logon, .. }) = server.step(&message, NOW, SERVER_RANDOM) else { panic!() };
    assert_eq!(logon.session_key, [0x55; 16]);
}

#[test]
fn names_and_sids_are_looked_up_both_ways() {
    let users = users();
    for name in ["ARDEN\\alice", "alice", "everyone", "BUILTIN\\administrators", "NT AUTHORITY\\SYSTEM", "arden\\none"]
    {
        let found = users.lookup_name(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(users.lookup_sid(&found.sid), Some(found), "{name}");
    }
    assert_eq!(users.lookup_name("OTHER\\alice"), None);
    for (name, domain) in [("arden\\", "ARDEN"), ("BUILTIN\\", "BUILTIN"), ("", "BUILTIN")] {
        let found = users.lookup_name(name).unwrap();
        assert_eq!((found.name.as_str(), found.name_use), (domain, NameUse::Domain), "{name}");
    }
    assert_eq!(users.lookup_name("OTHER\\"), None);
    assert_eq!(users.lookup_name("ARDEN").unwrap().name_use, NameUse::Domain);
    assert_eq!(users.lookup_sid(&"S-1-5-21-1-2-3-4444".parse().unwrap()), None);
}

#[test]
fn accounts_are_found_by_their_newest_names_only() {
    let users = users();
    let staff = |name: &str| GroupRecord {
        name: name.into(),
        comment: String::new(),
        sid: "S-1-5-21-1-2-3-2000".parse().unwrap(),
    };
    users.put_group(staff("Staff"));
    users.put_group(staff("People"));
    assert_eq!(users.lookup_name("staff"), None);
    assert_eq!(users.lookup_name("PEOPLE").unwrap().sid, staff("").sid);
    assert_eq!(users.lookup_sid(&staff("").sid).unwrap().name, "People");
    assert_eq!(users.add_user("later", "x", &[]), 2001);
    let later = users.user_by_rid(2001).unwrap();
    users.put_user(UserRecord { rid: 3000, ..later });
    assert!(users.user_by_rid(2001).is_none() && users.user_by_rid(3000).is_some());
    assert!(users.remove_user("LATER") && users.user_by_rid(3000).is_none());
    users.replace(vec![], vec![staff("Crew")]);
    assert_eq!((users.users().len(), users.lookup_name("crew").is_some()), (0, true));
    assert!(users.lookup_name("people").is_none() && users.lookup_name("administrators").is_some());
}

#[test]
fn hostile_tokens_never_panic() {
    let mut rng = Rng(77);
    let mut client = Initiator::new("alice", "", "pässword");
    let first = client.first();
    let Ok(Step::Continue(reply)) = acceptor().step(&first, NOW, SERVER_RANDOM) else { panic!() };
    let second = client.second(&reply, CLIENT_RANDOM).unwrap();
    for _ in 0..4000 {
        let mut server = acceptor();
        let mutate = |bytes: &[u8], rng: &mut Rng| {
            let mut out = bytes.to_vec();
            for _ in 0..rng.below(4) {
                let at = rng.below(out.len() as u64) as usize;
                out[at] = rng.next() as u8;
            }
            out.truncate(out.len() - rng.below(8).saturating_sub(4) as usize);
            out
        };
        let token = mutate(&first, &mut rng);
        if server.step(&token, NOW, SERVER_RANDOM).is_ok() {
            let _ = server.step(&mutate(&second, &mut rng), NOW, SERVER_RANDOM);
        }
    }
}
