//! The outermost parts of a message: the TRANSFORM_HEADER of an encrypted one, [MS-SMB2] 2.2.41, and the transport's length.

use arden_wire::smb2::transform::{TRANSFORM_BYTES, TransformHeader};

use crate::sessions::Session;

/// Encrypts `frame`: room for the TRANSFORM_HEADER, then the message.
pub fn seal_frame(session: &Session, frame: &mut [u8]) {
    let Some((encryption, _)) = &session.keys else { return };
    let mut header = Vec::with_capacity(TRANSFORM_BYTES);
    TransformHeader {
        signature: [0; 16],
        nonce: session.next_nonce(),
        original_message_size: (frame.len() - TRANSFORM_BYTES) as u32,
        flags: 1,
        session_id: session.id,
    }
    .put(&mut header);
    frame[..TRANSFORM_BYTES].copy_from_slice(&header);
    encryption.seal(frame);
}

/// The direct TCP transport's length, [MS-SMB2] 2.1.
pub fn put_frame_length(out: &mut [u8], start: usize) {
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}
