//! SMB 2 messages and the file structures inside of them.

use arden_wire::{fscc, smb2, stream_snapshot};

/// Every request parser on the same bytes.
pub fn messages(data: &[u8]) {
    let _ = smb2::header::Header::parse(data);
    let _ = smb2::transform::TransformHeader::parse(data);
    let _ = smb2::negotiate::NegotiateRequest::parse(data);
    let _ = smb2::negotiate::parse_smb1_negotiate(data);
    let _ = smb2::session::parse_empty(data);
    let _ = smb2::create::parse_contexts(data).map(|list| list.len());
    let _ = smb2::io::parse_close(data);
    let _ = smb2::io::parse_flush(data);
    let _ = smb2::io::ReadRequest::parse(data);
    let _ = smb2::io::WriteRequest::parse(data);
    let _ = smb2::io::LockRequest::parse(data);
    let _ = smb2::io::IoctlRequest::parse(data);
    let _ = smb2::io::BreakAck::parse(data);
    let _ = smb2::session::SessionSetupRequest::parse(data);
    let _ = smb2::session::TreeConnectRequest::parse(data, true);
    let _ = smb2::session::TreeConnectRequest::parse(data, false);
    let _ = smb2::info::QueryDirectoryRequest::parse(data);
    let _ = smb2::info::ChangeNotifyRequest::parse(data);
    let _ = smb2::info::QueryInfoRequest::parse(data);
    let _ = smb2::info::SetInfoRequest::parse(data);
    let _ = smb2::create::LeaseContext::parse(data);
    let _ = smb2::create::DurableV2::parse(data);
    let _ = smb2::create::ReconnectV2::parse(data);
    let _ = smb2::create::CreateRequest::parse(data);
}

/// Information classes that clients set, extended attributes, reparse points, the input of a file system control.
pub fn fscc(data: &[u8]) {
    let _ = fscc::parse_eas(data).map(|list| list.len());
    let _ = fscc::parse_ea_names(data).map(|list| list.len());
    let _ = fscc::BasicSet::parse(data);
    let _ = fscc::RenameSet::parse(data, false);
    let _ = fscc::RenameSet::parse(data, true);
    let _ = fscc::SymlinkReparse::parse(data);
    for output_max in [0, 4096] {
        // A part of what was sent.
        let request = stream_snapshot::Request::parse(data, output_max);
        assert!(request.is_ok_and(|r| 24 + r.name.len() <= data.len()) || request.is_err());
    }
}

/// NEGOTIATE with its contexts: what is listed is there.
pub fn negotiate(data: &[u8]) {
    let _ = smb2::negotiate::parse_smb1_negotiate(data);
    let Ok(request) = smb2::negotiate::NegotiateRequest::parse(data) else { return };
    assert!(request.dialects.len() * 2 <= data.len());
    assert!(request.contexts.len() * 8 <= data.len());
}

/// CREATE with its contexts, whole and each by itself.
pub fn create(data: &[u8]) {
    let _ = smb2::create::LeaseContext::parse(data);
    let _ = smb2::create::DurableV2::parse(data);
    let _ = smb2::create::ReconnectV2::parse(data);
    let Ok(request) = smb2::create::CreateRequest::parse(data) else { return };
    for context in &request.contexts {
        assert!(request.context(context.name).is_some());
        if let Ok(lease) = smb2::create::LeaseContext::parse(context.data) {
            assert_eq!(smb2::create::LeaseContext::parse(&lease.encode()), Ok(lease));
        }
        let _ = smb2::create::DurableV2::parse(context.data);
        let _ = smb2::create::ReconnectV2::parse(context.data);
        let _ = fscc::parse_eas(context.data);
        let _ = arden_wire::dtyp::SecurityDescriptor::parse(context.data);
    }
}

/// TRANSFORM_HEADER: says the same when said again.
pub fn transform(data: &[u8]) {
    let Ok(header) = smb2::transform::TransformHeader::parse(data) else { return };
    let mut again = Vec::new();
    header.put(&mut again);
    assert_eq!(smb2::transform::TransformHeader::parse(&again), Ok(header));
}
