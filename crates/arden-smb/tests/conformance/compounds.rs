//! Compounds, credits and multi-credit requests.

use crate::client::*;

fn related(encrypt: bool) {
    let lab = Lab::new();
    let mut c = lab.client();
    c.encrypt = encrypt;
    let id = FileId::RELATED;
    let replies = c.compound(&[want("x").req(), write(id, 0, b"!").related(), close(id).related()]);
    for reply in &replies {
        assert_eq!(reply.status(), NtStatus::SUCCESS);
        assert_eq!((reply.encrypted, reply.signed), (encrypt, !encrypt));
    }
    assert_eq!(std::fs::read(lab.host("x")).unwrap(), b"!");
    assert!(lab.server.trees.opens().is_empty());
}

/// `BVT_Compound_RelatedRequests`
#[test]
fn bvt_compound_related_requests() {
    related(false);
}
/// `Compound_Encrypt_RelatedRequests`
#[test]
fn compound_encrypt_related_requests() {
    related(true);
}

fn unrelated(encrypt: bool) {
    let lab = Lab::new();
    let mut c = lab.client();
    c.encrypt = encrypt;
    for reply in c.compound(&[want("one").req(), want("two").req()]) {
        assert_eq!(reply.status(), NtStatus::SUCCESS);
        c.close(Created::parse(&reply).id);
    }
    let replies = c.compound(&[want("no\\such").req(), want("three").req(), echo()]);
    let statuses: Vec<_> = replies.iter().map(Reply::status).collect();
    assert_eq!(statuses, [NtStatus::OBJECT_PATH_NOT_FOUND, NtStatus::SUCCESS, NtStatus::SUCCESS]);
}

/// `BVT_Compound_UnRelatedRequests`
#[test]
fn bvt_compound_un_related_requests() {
    unrelated(false);
}
/// `Compound_Encrypt_UnrelatedRequests`
#[test]
fn compound_encrypt_unrelated_requests() {
    unrelated(true);
}

#[test]
fn what_is_related_to_a_failure_fails_alike() {
    let lab = Lab::new();
    let mut c = lab.client();
    let id = FileId::RELATED;
    let replies = c.compound(&[want("no").existing().req(), read(id, 0, 1).related(), close(id).related()]);
    for reply in &replies {
        assert_eq!(reply.status(), NtStatus::OBJECT_NAME_NOT_FOUND);
    }
}

#[test]
fn the_first_request_is_related_to_nothing() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("x"));
    assert_eq!(c.status(&close(f.id).related()), NtStatus::INVALID_PARAMETER);
    let replies = c.compound(&[close(f.id).related(), echo()]);
    assert_eq!(replies[0].status(), NtStatus::INVALID_PARAMETER);
}

#[test]
fn a_wrong_signature_in_the_middle_fails_its_request() {
    let lab = Lab::new();
    let mut c = lab.client();
    let mut message = Vec::new();
    let mut ids = Vec::new();
    for (i, name) in ["one", "two", "three"].into_iter().enumerate() {
        let (id, mut bytes) = c.encode(&want(name).req(), i < 2);
        if i == 1 {
            bytes[50] ^= 1;
        }
        ids.push(id);
        message.extend_from_slice(&bytes);
    }
    c.send_bytes(message);
    let statuses: Vec<_> = ids.into_iter().map(|id| c.receive(id).status()).collect();
    assert_eq!(statuses, [NtStatus::SUCCESS, NtStatus::ACCESS_DENIED, NtStatus::SUCCESS]);
}

#[test]
fn reads_and_a_close_in_one_message_answer_in_order() {
    let lab = Lab::new();
    let mut c = lab.client();
    let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    c.put("x", &data);
    let id = FileId::RELATED;
    let open = want("x").existing().req();
    let replies = c.compound(&[
        open,
        read(id, 0, 100_000).related(),
        read(id, 100_000, 100_000).related(),
        read(id, 200_000, 1).related(),
        close(id).related(),
    ]);
    assert_eq!(replies[1].read_data(), &data[..100_000]);
    assert_eq!(replies[2].read_data(), &data[100_000..]);
    assert_eq!(replies[3].status(), NtStatus::END_OF_FILE);
    assert_eq!(replies[4].status(), NtStatus::SUCCESS);
}

/// `BVT_MultiCredit_OneRequestWithMultiCredit`
#[test]
fn bvt_multi_credit_one_request_with_multi_credit() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb210, Dialect::Smb300, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let f = Created::parse(&c.call(&want("big").req().credits(256)).ok());
        assert!(c.credits >= 128, "{} credits", c.credits);
        let content: Vec<u8> = (0..8u32 << 20).map(|i| (i >> 8) as u8).collect();
        let reply = c.call(&write(f.id, 0, &content).credits(128)).ok();
        assert_eq!(reply.header.credit_charge, 128);
        assert_eq!(c.read(f.id, 0, content.len() as u32), content);
        c.close(f.id);
    }
}

#[test]
fn a_charge_that_is_too_small_is_refused() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("x"));
    assert_eq!(c.status(&write(f.id, 0, &[1; 65_537]).charge(1)), NtStatus::INVALID_PARAMETER);
    assert_eq!(c.status(&read(f.id, 0, 65_537).charge(1)), NtStatus::INVALID_PARAMETER);
    let query = query_info(f.id, info_type::FILE, file_class::ALL, 0, &[], 65_537);
    assert_eq!(c.status(&query.charge(1)), NtStatus::INVALID_PARAMETER);
    c.write(f.id, 0, &[1; 65_536]);
}

#[test]
fn larger_than_the_maximum_is_refused() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = Created::parse(&c.call(&want("x").req().credits(512)).ok());
    assert_eq!(c.status(&read(f.id, 0, (8 << 20) + 1).credits(256)), NtStatus::INVALID_PARAMETER);
    let mut old = lab.client_with(Dialect::Smb202);
    let f = old.open(want("x"));
    assert_eq!(old.status(&read(f.id, 0, 65_537)), NtStatus::INVALID_PARAMETER);
}

#[test]
fn credits_are_granted_as_asked_up_to_a_limit() {
    let lab = Lab::new();
    let mut c = lab.client();
    let before = c.credits;
    let reply = c.call(&echo().credits(100));
    assert_eq!(reply.header.credits, 100);
    assert_eq!(c.credits, before + 99);
    for _ in 0..200 {
        c.call(&echo().credits(u16::MAX));
    }
    assert!(c.credits <= 8192, "{}", c.credits);
    // Whoever asks for nothing keeps what he has, and is never left with none.
    while c.credits > 1 {
        let charge = (c.credits - 1).min(64) as u16;
        assert_eq!(c.call(&echo().credits(0).charge(charge)).header.credits, 0);
    }
    assert_eq!(c.call(&echo().credits(0)).header.credits, 1);
}

#[test]
fn message_ids_are_used_once_and_in_the_window() {
    let lab = Lab::new();
    let used = |c: &Client| c.next_id - 1;
    let ahead = |c: &Client| c.next_id + c.credits;
    for pick in [used, ahead, |_: &Client| u64::MAX, |_: &Client| 0] {
        let mut c = lab.client();
        let id = pick(&c);
        c.send(&echo().id(id));
        assert!(c.is_closed(), "message id {id}");
    }
    let mut c = lab.client();
    let last = c.next_id + c.credits - 1;
    assert_eq!(c.status(&echo().id(last)), NtStatus::SUCCESS);
    c.send(&echo().id(last).charge(2));
    assert!(c.is_closed());
}
